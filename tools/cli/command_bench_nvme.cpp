// `spillway bench nvme` and `spillway bench swap`: the tables around tools/bench.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "runtime/base/error.hpp"
#include "tools/bench/nvme_bench.hpp"
#include "tools/bench/nvme_swap_bench.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"

namespace spillway::cli {
namespace {

using nlohmann::ordered_json;

void print_load(const ordered_json& row) {
  const std::string extra =
      row.contains("fraction") ? fmt::format("  spillway {:.2f} GB/s = {:.3f} of it",
                                             row["spillway_gigabytes_per_second"].get<double>(),
                                             row["fraction"].get<double>())
      : row.contains("checksum_ms_per_gib")
          ? fmt::format("  checksums {:.1f} ms/GiB, commit {:.1f} ms",
                        row["checksum_ms_per_gib"].get<double>(), row["commit_ms"].get<double>())
          : "";
  answer("{:<11} {:<9} {:<6} {:>5} {:>10} {:>8.2f} {:>8.1f}{}\n", row["shape"].get<std::string>(),
         row["engine"].get<std::string>(), row["pattern"].get<std::string>(),
         row["depth"].get<std::uint64_t>(), format_bytes(Bytes{row["block"].get<std::uint64_t>()}),
         row["gigabytes_per_second"].get<double>(), row["cpu_ms_per_gib"].get<double>(), extra);
  flush_answers();
}

void print_summary(const ordered_json& document) {
  for (const auto& [pattern, best] : document["best"].items()) {
    answer("best {:<6} {:.2f} GB/s at depth {}, blocks of {}\n", pattern,
           best["gigabytes_per_second"].get<double>(), best["depth"].get<std::uint64_t>(),
           format_bytes(Bytes{best["block"].get<std::uint64_t>()}));
  }
  answer(
      "tuning: depth {}, transfers of {} with {}: read {:.2f}, write {:.2f}, mixed {:.2f} "
      "GB/s\n",
      document["tuning"]["queue_depth"].get<std::uint64_t>(),
      format_bytes(Bytes{document["tuning"]["transfer_bytes"].get<std::uint64_t>()}),
      document["tuning"]["engine"].get<std::string>(),
      document["tuning"]["read_gbps"].get<double>(), document["tuning"]["write_gbps"].get<double>(),
      document["tuning"]["mixed_gbps"].get<double>());
  if (!document["fraction_of_limit"].is_null()) {
    answer("at least {:.3f} of {}'s best in every pattern\n",
           document["fraction_of_limit"].get<double>(), document["limit"].get<std::string>());
  }
  answer(
      "all data verified; drive wear: {} written by this benchmark; state that is always "
      "swapped at full rate writes {:.0f} TB a day\n",
      format_bytes(Bytes{document["wear"]["bytes_written"].get<std::uint64_t>()}),
      document["wear"]["terabytes_a_day_at_full_rate"].get<double>());
}

void print_swap(const ordered_json& document) {
  answer(
      "{:.0f} M parameters in {}, engine {}, kernel {}, medians of {} rounds\n"
      "  drive alone      {:8.3f} s   {:.2f} GB/s, read and write together\n"
      "  update alone     {:8.3f} s\n"
      "  checksums        {:8.3f} s   more, of what is read and of what is written: {:.3f} s of "
      "CPU\n"
      "  whole pipeline   {:8.3f} s   {:.3f} x the slower of drive and update\n"
      "drive wear: {} written a step, {:.1f} TB a day at this speed; result verified\n",
      document["parameters"].get<double>() / 1e6, document["state_format"].get<std::string>(),
      document["engine"].get<std::string>(), document["kernel"].get<std::string>(),
      document["rounds"].get<int>(), document["io_seconds"].get<double>(),
      document["io_gigabytes_per_second"].get<double>(), document["update_seconds"].get<double>(),
      document["checksum_seconds"].get<double>(), document["checksum_cpu_seconds"].get<double>(),
      document["pipeline_seconds"].get<double>(), document["ratio_to_limit"].get<double>(),
      format_bytes(Bytes{document["wear"]["bytes_written_a_step"].get<std::uint64_t>()}),
      document["wear"]["terabytes_written_a_day"].get<double>());
}

struct NvmeFlags {
  bench::NvmeBenchOptions options;
  std::string size;
  std::vector<std::string> blocks;
  std::uint64_t point_milliseconds = 150;
  std::string compare;
};

ordered_json run_nvme(NvmeFlags flags, bool json) {
  bench::NvmeBenchOptions& options = flags.options;
  if (!flags.size.empty()) options.size = parse_bytes(flags.size);
  if (!flags.blocks.empty()) {
    options.blocks.clear();
    for (const std::string& block : flags.blocks) options.blocks.push_back(parse_bytes(block));
  }
  options.point = std::chrono::milliseconds{flags.point_milliseconds};
  check(flags.compare.empty() || flags.compare == "fio", ErrorCode::invalid_argument,
        fmt::format("--compare {}: this benchmark compares with fio", flags.compare));
  options.compare_fio = !flags.compare.empty();
  if (!json) {
    answer("{:<11} {:<9} {:<6} {:>5} {:>10} {:>8} {:>8}\n", "shape", "engine", "load", "depth",
           "block", "GB/s", "CPU ms/GiB");
  }
  ordered_json document =
      bench::bench_nvme(options, json ? bench::NvmeBenchRow{} : bench::NvmeBenchRow{print_load});
  if (!json) print_summary(document);
  return document;
}

}  // namespace

void add_bench_nvme(Command bench, Session& session) {
  auto flags = std::make_shared<NvmeFlags>();
  Command command = add_command(
      bench, session, "nvme",
      "Measures reads, writes and both at once, sequentially and in tiles, with every engine, and "
      "verifies all data. CPU is the time of all threads, without making and checking the data",
      [flags, &session] { return run_nvme(*flags, session.json); });
  command.add_option("--dir", flags->options.directory, "The scratch files lie in this directory")
      .existing_directory()
      .capture_default();
  command.add_option("--size", flags->size, "The scratch file has this size; by default 1GiB");
  command
      .add_option("--engines", flags->options.engines,
                  "These engines are measured: uring, aio, posix")
      .comma_separated();
  command
      .add_option("--depths", flags->options.depths,
                  "These numbers of requests are in flight; by default 4,8,16")
      .comma_separated();
  command.add_option("--blocks", flags->blocks, "Requests have these sizes; by default 1MiB,4MiB")
      .comma_separated();
  command
      .add_option("--point-ms", flags->point_milliseconds,
                  "Each measurement takes this many milliseconds")
      .range(10, 60'000)
      .capture_default();
  command.add_option("--rounds", flags->options.rounds, "The comparison has this many rounds")
      .range(1, 100)
      .capture_default();
  command.add_option("--compare", flags->compare,
                     "With fio, the answer has the fraction of its best on the same file");
  command.add_flag("--sqpoll", flags->options.uring.submission_thread,
                   "A thread of the kernel submits what uring gets");
  command.add_flag("--iopoll", flags->options.uring.completion_polling,
                   "uring polls the device; this needs --sqpoll");
}

void add_bench_swap(Command bench, Session& session) {
  struct Flags {
    bench::SwapBenchOptions options;
    std::string transfer;
    std::string format = "fp32";
  };
  auto flags = std::make_shared<Flags>();
  Command command = add_command(
      bench, session, "swap",
      "Measures the whole pipeline of read, update and write against its slower part alone",
      [flags, &session] {
        bench::SwapBenchOptions options = flags->options;
        options.format = parse_state_format(flags->format);
        if (!flags->transfer.empty()) options.transfer_bytes = parse_bytes(flags->transfer);
        for (auto& directory : options.directories) directory /= "spillway-bench";
        const bool json = session.json;
        ordered_json document =
            bench::bench_swap(options, [](const std::string& line) { tell("{}\n", line); });
        if (!json) print_swap(document);
        return document;
      });
  command
      .add_option("--dir", flags->options.directories,
                  "The swap files lie in this directory; several may be given")
      .capture_default();
  command.add_option("--size", flags->options.parameters, "The state has this many parameters")
      .capture_default();
  command.add_option("--tile", flags->options.tile_parameters, "A tile has this many parameters")
      .capture_default();
  command
      .add_option("--format", flags->format, "The state has this format: fp32, split, bf16 or int8")
      .capture_default();
  command
      .add_option("--engine", flags->options.engine,
                  "The disk is reached by this engine: auto, uring, aio or posix")
      .capture_default();
  command.add_option("--threads", flags->options.threads,
                     "The update uses this many threads; by default one on each core");
  command.add_option("--isa", flags->options.isa,
                     "The update uses this instruction set: scalar, avx2 or avx512");
  command.add_option("--depth", flags->options.queue_depth, "This many requests are in flight")
      .capture_default();
  command.add_option("--block", flags->transfer, "Requests have this size; by default 4MiB");
  command.add_option("--buffers", flags->options.buffers, "This many tiles are in memory at once")
      .capture_default();
  command.add_option("--rounds", flags->options.rounds, "Medians are taken over this many rounds")
      .range(1, 100)
      .capture_default();
}

}  // namespace spillway::cli
