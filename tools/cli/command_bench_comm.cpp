// `spillway bench comm`: the table around tools/bench/comm_bench.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string_view>

#include "comm/threads/thread_group.hpp"
#include "runtime/base/error.hpp"
#include "tools/bench/comm_bench.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/launch.hpp"

namespace spillway::cli {
namespace {

using nlohmann::ordered_json;

struct BenchCommFlags {
  std::string backend = "threads";
  std::uint32_t ranks = 4;
  std::string size = "64MiB";
  std::string dtype = "fp32";
  std::size_t repetitions = 5;
  std::optional<double> link;
  bool trust_network = false;
};

bench::CommCase case_of(const BenchCommFlags& flags) {
  return {.size = parse_bytes(flags.size),
          .dtype = parse_dtype(flags.dtype),
          .repetitions = flags.repetitions,
          .link_gigabytes_per_second = flags.link};
}

std::unique_ptr<comm::Communicator> join(const BenchCommFlags& flags) {
  std::optional<comm::LaunchEnvironment> launch = launch_environment();
  const auto options = launch ? communicator_options(*launch) : comm::CommunicatorOptions{};
  if (flags.backend != "tcp") return comm::make_communicator(flags.backend, options);
  check(launch.has_value() && launch->backend == "tcp", ErrorCode::invalid_argument,
        "--backend tcp is for the processes that torchrun or srun starts");
  launch->trusts_network = flags.trust_network;
  return comm::make_tcp_communicator(*launch, options);
}

/// Measures, or as a rank that is not the first returns nothing: one rank answers.
std::optional<bench::CommMeasurement> measure(const BenchCommFlags& flags) {
  const bench::CommCase what = case_of(flags);
  std::optional<bench::CommMeasurement> first;
  const auto measure_rank = [&](comm::Communicator& communicator) {
    bench::CommMeasurement measured = bench::measure_comm(communicator, what);
    if (communicator.rank() == Rank{0}) first = std::move(measured);
  };
  if (flags.backend == "threads") {
    comm::ThreadGroup(flags.ranks, {.link_gigabytes_per_second = flags.link}).run(measure_rank);
  } else {
    check(!flags.link.has_value(), ErrorCode::invalid_argument,
          "--link limits ranks of --backend threads; other backends have links of their own");
    measure_rank(*join(flags));
  }
  return first;
}

ordered_json json_of(const bench::CommResult& result) {
  ordered_json row{
      {"operation", result.name},        {"median_s", result.median()},
      {"seconds", result.seconds},       {"sent_bytes", result.sent.value()},
      {"limit_s", result.least_seconds}, {"fraction_of_limit", result.fraction_of_limit()}};
  if (result.exact.has_value()) row["exact"] = *result.exact;
  if (result.other_mathematics) row["mathematics"] = "other";
  return row;
}

ordered_json json_of(const BenchCommFlags& flags, const bench::CommMeasurement& measured) {
  ordered_json document{
      {"bench", "comm"},         {"backend", flags.backend},
      {"ranks", measured.ranks}, {"bytes", parse_bytes(flags.size).value()},
      {"dtype", flags.dtype},    {"copy_gb_per_s", measured.copy_gigabytes_per_second}};
  if (flags.link) document["link_gb_per_s"] = *flags.link;
  for (const bench::CommResult& result : measured.results) {
    document["results"].push_back(json_of(result));
    if (result.name == "all_reduce") document["fraction_of_limit"] = result.fraction_of_limit();
  }
  return document;
}

std::string_view exactness(std::optional<bool> exact) {
  if (!exact.has_value()) return "";
  return *exact ? "yes" : "no";
}

void print(const bench::CommMeasurement& measured) {
  answer("{} ranks; all of them together copy {:.2f} GB/s in memory\n", measured.ranks,
         measured.copy_gigabytes_per_second);
  answer("{:<30}{:>12}{:>14}{:>12}{:>10}   {}\n", "operation", "median", "sent by one", "limit",
         "of limit", "exact");
  for (const bench::CommResult& result : measured.results) {
    answer("{:<30}{:>9.2f} ms{:>14}{:>9.2f} ms{:>10.3f}   {}\n", result.name, 1e3 * result.median(),
           format_bytes(result.sent), 1e3 * result.least_seconds, result.fraction_of_limit(),
           result.other_mathematics ? "other mathematics" : exactness(result.exact));
  }
}

ordered_json run(const BenchCommFlags& flags, bool json) {
  const std::optional<bench::CommMeasurement> measured = measure(flags);
  if (!measured.has_value()) return {};
  for (const bench::CommResult& result : measured->results) {
    const bool in_order =
        result.name == "all_reduce" || result.name == "parameter_server.synchronous";
    check(!in_order || *result.exact, ErrorCode::internal,
          fmt::format("{} does not give the sum in the order of ranks", result.name));
  }
  if (!json) print(*measured);
  return json_of(flags, *measured);
}

}  // namespace

void add_bench_comm(Command bench, Session& session) {
  auto flags = std::make_shared<BenchCommFlags>();
  Command command =
      add_command(bench, session, "comm",
                  "Measures collectives of ranks against copies in memory, other all-reduces and "
                  "parameter servers",
                  [flags, &session] { return run(*flags, session.json); });
  command
      .add_option(
          "--backend", flags->backend,
          "The ranks are threads, or the processes that mpirun (mpi), torchrun (tcp) or srun "
          "(either) starts")
      .capture_default();
  command.add_option("--ranks", flags->ranks, "There are this many threads")
      .positive()
      .capture_default();
  command.add_option("--size", flags->size, "The buffer of all ranks has this size")
      .capture_default();
  command.add_option("--dtype", flags->dtype, "Elements have this type: fp32, bf16 or fp16")
      .capture_default();
  command.add_option("--repetitions", flags->repetitions, "All is measured this often, in turn")
      .capture_default();
  command.add_option(
      "--link", flags->link,
      "Every thread sends, and receives, so many GB/s; by default as fast as memory");
  add_trust_network(command, flags->trust_network);
}

}  // namespace spillway::cli
