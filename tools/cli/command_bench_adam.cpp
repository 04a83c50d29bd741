#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "runtime/base/error.hpp"
#include "runtime/base/topology.hpp"
#include "tools/bench/adam_bench.hpp"
#include "tools/bench/peer_process.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"

namespace spillway::cli {
namespace {

using bench::AdamCase;
using bench::AdamMeasurement;
using bench::Series;
using nlohmann::ordered_json;

struct BenchAdamFlags {
  std::vector<std::string> sizes = {"64Mi"};
  std::vector<std::string> formats = {"fp32", "split", "bf16", "int8"};
  std::vector<std::string> isas;
  std::vector<std::size_t> threads = {0};
  std::string gradient = "bf16";
  std::string parameter = "bf16";
  std::size_t repetitions = 9;
  std::optional<std::size_t> prefetch;
  bool denormals = false;
  std::vector<std::string> compare;
  std::string python = "python3";
};

/// Timings of the peers by variant.
using PeerSeries = std::map<std::string, Series>;

/// The peers have fp32 masters and moments. Format `split` gives the same bits as `fp32`.
bool as_the_peers(StateFormat format) {
  return format == StateFormat::fp32 || format == StateFormat::split;
}

struct Peers {
  std::map<std::string, std::string> versions;  ///< by package
  PeerSeries series;
};

ordered_json json_of(const Series& series) {
  return {{"median_ns", series.median()}, {"minimum_ns", series.minimum()}};
}

/// What was measured together: the sizes and formats of one instruction set and number of threads.
struct Group {
  std::vector<AdamMeasurement> measurements;
  Peers peers;

  /// How much faster than format fp32, if that is among them.
  [[nodiscard]] std::optional<double> over_fp32(const AdamMeasurement& m) const {
    for (const AdamMeasurement& other : measurements) {
      const bool same = other.of.parameters == m.of.parameters && other.of.tile == m.of.tile;
      if (same && other.of.format == StateFormat::fp32) {
        return bench::median_ratio(other.update, m.update);
      }
    }
    return std::nullopt;
  }
  /// Returns, of all sizes in this format, the slowest over the fastest.
  [[nodiscard]] double spread(StateFormat format) const {
    const Series* first = nullptr;
    double lowest = 1;
    double highest = 1;
    for (const AdamMeasurement& m : measurements) {
      if (m.of.format != format) continue;
      if (first == nullptr) first = &m.update;
      const double ratio = bench::median_ratio(m.update, *first);
      lowest = std::min(lowest, ratio);
      highest = std::max(highest, ratio);
    }
    return highest / lowest;
  }
  [[nodiscard]] const PeerSeries& peers_of(const AdamMeasurement& m) const {
    static const PeerSeries none;
    return as_the_peers(m.of.format) ? peers.series : none;
  }
};

ordered_json json_of(const AdamMeasurement& m, const Group& group) {
  ordered_json document{{"format", name_of(m.of.format)},
                        {"gradient", name_of(m.of.gradient)},
                        {"parameter", name_of(m.of.parameter)},
                        {"isa", name_of(m.of.isa)},
                        {"threads", m.threads},
                        {"parameters", m.of.parameters},
                        {"tile", m.of.tile},
                        {"repetitions", m.of.repetitions},
                        {"exact", m.exact},
                        {"bytes_per_parameter", m.bytes_per_parameter},
                        {"ns_per_parameter", m.update.median()},
                        {"gb_per_s", m.bytes_per_parameter / m.update.median()},
                        {"fraction_of_limit", m.fraction_of_limit()},
                        {"fraction_of_layout", m.fraction_of_layout()},
                        {"prefetch", m.prefetch},
                        {"traffic_prefetch", m.traffic_prefetch},
                        {"update", json_of(m.update)},
                        {"traffic", json_of(m.traffic)},
                        {"limit", json_of(m.limit)},
                        {"update_out_of_place", json_of(m.update_apart)},
                        {"traffic_out_of_place", json_of(m.traffic_apart)}};
  document["limit"]["skew"] = m.limit_skew ? ordered_json(*m.limit_skew) : ordered_json();
  if (!m.denormal_all.ns.empty()) {
    document["denormal_tenth_ratio"] = m.denormal_tenth.median();
    document["denormal_all_ratio"] = m.denormal_all.median();
  }
  if (const auto ratio = group.over_fp32(m)) document["speedup_over_fp32"] = *ratio;
  for (const auto& [name, series] : group.peers_of(m)) {
    document["peers"][name] = json_of(series);
    document["peers"][name]["ratio"] = bench::median_ratio(series, m.update);
  }
  return document;
}

void print_header() {
  answer("{:<7}{:<10}{:>8}{:>12}{:>10}{:>9}{:>9}{:>8}{:>10}{:>11}{:>14}{:>10}{:>10}{:>7}\n",
         "format", "isa", "threads", "parameters", "tile", "ns/param", "minimum", "GB/s",
         "of limit", "of layout", "out of place", "over fp32", "prefetch", "exact");
}

void print_row(const AdamMeasurement& m, const Group& group) {
  const auto ratio = group.over_fp32(m);
  answer("{:<7}{:<10}{:>8}{:>12}{:>10}", name_of(m.of.format), name_of(m.of.isa), m.threads,
         m.of.parameters, m.of.tile == 0 ? "-" : std::to_string(m.of.tile));
  answer("{:>9.4f}{:>9.4f}{:>8.1f}{:>10.3f}{:>11.3f}{:>13.2f}x{:>10}{:>10}{:>7}\n",
         m.update.median(), m.update.minimum(), m.bytes_per_parameter / m.update.median(),
         m.fraction_of_limit(), m.fraction_of_layout(), m.update_apart.median() / m.update.median(),
         ratio ? fmt::format("{:.2f}x", *ratio) : "-", m.prefetch, m.exact ? "yes" : "NO");
  if (!m.denormal_all.ns.empty()) {
    answer("  moments below the normal range: a tenth {:.2f}x, all {:.2f}x (out of place)\n",
           m.denormal_tenth.median(), m.denormal_all.median());
  }
  for (const auto& [name, series] : group.peers_of(m)) {
    answer("  {:<26}{:>9.4f}{:>9.4f}   {:.2f}x ours\n", name, series.median(), series.minimum(),
           bench::median_ratio(series, m.update));
  }
  flush_answers();
}

/// The script that runs the peers, which lies in the checkout that has this program. Throws
/// `Error{invalid_argument}` for a program elsewhere.
std::string peers_script() {
  namespace fs = std::filesystem;
  const fs::path program = fs::read_symlink("/proc/self/exe");
  for (fs::path path = program.parent_path(); path.has_relative_path(); path = path.parent_path()) {
    if (fs::exists(path / "tools/bench/adam_peers.py")) return path / "tools/bench/adam_peers.py";
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("--compare runs tools/bench/adam_peers.py of the checkout, and no folder "
                          "above {} has it: run the program of a build folder",
                          program.string()));
}

Group measure(const BenchAdamFlags& flags, std::span<const AdamCase> cases) {
  Group group;
  const bool comparable =
      std::ranges::any_of(cases, [](const AdamCase& what) { return as_the_peers(what.format); });
  if (flags.compare.empty() || !comparable) {
    group.measurements = bench::measure_adam(cases);
    return group;
  }
  const AdamCase& what = cases.front();
  const std::size_t threads = what.threads != 0 ? what.threads : read_topology().cores.size();
  bench::PeerProcess process({flags.python, peers_script(), "--peers",
                              fmt::format("{}", fmt::join(flags.compare, ",")), "--size",
                              std::to_string(what.parameters), "--threads", std::to_string(threads),
                              "--gradient", flags.gradient});
  group.peers.versions = process.read().at("versions").get<std::map<std::string, std::string>>();
  group.measurements = bench::measure_adam(cases, [&] {
    process.request();
    const nlohmann::json answer = process.read();
    for (const auto& [name, ns] : answer.items()) {
      group.peers.series[name].ns.push_back(ns.get<double>());
    }
  });
  return group;
}

struct Size {
  std::size_t parameters;
  std::size_t tile;
};

Size parse_size(const std::string& text) {
  const std::size_t slash = text.find('/');
  try {
    return {.parameters = parse_count(text.substr(0, slash)),
            .tile = slash == std::string::npos ? 0 : parse_count(text.substr(slash + 1))};
  } catch (const std::exception&) {  // CLI11's, whose message leaves out what was given
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("--size: \"{}\" is not a number of parameters; give one such as 64Mi, or "
                    "64Mi/2Mi for tiles of 2 Mi",
                    text));
  }
}

void add_cases(const BenchAdamFlags& flags, const Size& size, AdamCase what,
               std::vector<AdamCase>& cases) {
  for (const std::string& format : flags.formats) {
    what.parameters = size.parameters;
    what.tile = size.tile;
    what.format = parse_state_format(format);
    what.gradient = parse_dtype(flags.gradient);
    what.parameter = parse_dtype(flags.parameter);
    what.repetitions = flags.repetitions;
    what.prefetch = flags.prefetch;
    what.denormals = flags.denormals;
    cases.push_back(what);
  }
}

/// The cases of each group. A peer holds the arrays of one size, so with peers sizes are apart.
std::vector<std::vector<AdamCase>> cases_of(const BenchAdamFlags& flags) {
  std::vector<std::string> isas = flags.isas;
  if (isas.empty()) isas.emplace_back(name_of(cpu_adam::best_isa()));
  std::vector<std::vector<AdamCase>> groups;
  for (const std::string& isa : isas) {
    for (const std::size_t threads : flags.threads) {
      AdamCase what;
      what.isa = cpu_adam::parse_isa(isa);
      what.threads = threads;
      for (std::size_t k = 0; k < flags.sizes.size(); ++k) {
        if (k == 0 || !flags.compare.empty()) groups.emplace_back();
        add_cases(flags, parse_size(flags.sizes[k]), what, groups.back());
      }
    }
  }
  return groups;
}

ordered_json run(const BenchAdamFlags& flags, bool json) {
  ordered_json document{{"bench", "adam"}, {"cpu", read_topology().cpu_model}};
  if (!json) print_header();
  double lowest = 1e9;
  for (const std::vector<AdamCase>& cases : cases_of(flags)) {
    const Group group = measure(flags, cases);
    if (!group.peers.versions.empty()) document["peer_versions"] = group.peers.versions;
    for (const AdamMeasurement& measured : group.measurements) {
      check(measured.exact, ErrorCode::internal,
            fmt::format("the {} kernel of format {} does not give the bits of the plain one",
                        name_of(measured.of.isa), name_of(measured.of.format)));
      if (!json) print_row(measured, group);
      document["results"].push_back(json_of(measured, group));
      lowest = std::min(lowest, measured.fraction_of_limit());
    }
    if (flags.sizes.size() == 1 || !flags.compare.empty()) continue;
    for (const std::string& format : flags.formats) {
      const double spread = group.spread(parse_state_format(format));
      if (!json) answer("{}: the slowest size takes {:.3f}x the fastest\n", format, spread);
      document["spread"].push_back({{"format", format}, {"ratio", spread}});
    }
  }
  document["fraction_of_limit"] = lowest;
  return document;
}

}  // namespace

void add_bench_adam(Command bench, Session& session) {
  auto flags = std::make_shared<BenchAdamFlags>();
  Command command = add_command(bench, session, "adam",
                                "Measures the update against the same traffic with no arithmetic",
                                [flags, &session] { return run(*flags, session.json); });
  command
      .add_option(
          "--size", flags->sizes,
          "The update has this many parameters, or PARAMETERS/TILE; sizes with commas between "
          "them are measured in turn. The four formats together take 88 bytes a parameter")
      .comma_separated()
      .capture_default();
  command
      .add_option("--format", flags->formats,
                  "These formats of state are measured: fp32, split, bf16, int8")
      .comma_separated();
  command
      .add_option("--isa", flags->isas, "These instruction sets are measured; by default the best")
      .comma_separated()
      .environment("SPILLWAY_ISA");
  command
      .add_option("--threads", flags->threads,
                  "These numbers of threads are measured; 0 is one on each physical core")
      .comma_separated();
  command.add_option("--gradient", flags->gradient, "Gradients have this type: fp32, bf16 or fp16")
      .capture_default();
  command
      .add_option("--parameters", flags->parameter,
                  "Parameters have this type: fp32 (format fp32), bf16 or fp16")
      .capture_default();
  command
      .add_option("--repetitions", flags->repetitions,
                  "All measurements are repeated this often, interleaved")
      .capture_default();
  command.add_option("--prefetch", flags->prefetch,
                     "Software prefetches this many parameters ahead; by default it is calibrated");
  command.add_flag("--denormals", flags->denormals,
                   "Moments below the normal range are measured too (formats fp32 and split)");
  command
      .add_option("--compare", flags->compare,
                  "These peers are measured side by side: torch, deepspeed")
      .comma_separated();
  command.add_option("--python", flags->python, "This Python has the peers")
      .capture_default()
      .environment("SPILLWAY_PYTHON");
}

}  // namespace spillway::cli
