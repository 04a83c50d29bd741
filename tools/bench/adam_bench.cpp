#include "tools/bench/adam_bench.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "cpu_adam/calibration.hpp"
#include "cpu_adam/traffic.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/units.hpp"
#include "tools/bench/adam_arena.hpp"

namespace spillway::bench {
namespace {

using cpu_adam::Kernel;
using cpu_adam::UpdateRange;
using cpu_adam::UpdateScalars;

enum class Pass { traffic, update };

/// How far apart in a huge page the arrays of the limit start, beside the layout of the update.
constexpr std::array<std::size_t, 8> kLimitSkews = {0,        4 << 10,  8 << 10,  12 << 10,
                                                    16 << 10, 20 << 10, 64 << 10, 272 << 10};

/// One pass over the arena; its steps are counted so that the bias correction is a real one.
class Runner {
 public:
  using Slots = AdamArena::Slots;

  Runner(std::size_t parameters, std::size_t tile, const Kernel& kernel, cpu_adam::WorkerPool& pool)
      : kernel_(kernel), count_(parameters), arena_(kernel, parameters, tile), pool_(pool) {
    arena_.fill(pool_);
  }

  /// Nanoseconds a parameter.
  double run(Pass pass, Slots slots, std::size_t prefetch) {
    const UpdateScalars scalars = cpu_adam::make_scalars({.weight_decay = 0.01}, ++steps_, 0.5);
    return timed([&] {
      arena_.for_each_part(pool_, slots, [&](UpdateRange part) {
        part.prefetch_distance = prefetch;
        if (pass == Pass::traffic) {
          cpu_adam::move_traffic(kernel_, part);
        } else {
          kernel_.update(scalars, part);
        }
      });
    });
  }

  /// The traffic in place over arrays of this skew.
  double run_limit(std::size_t skew, std::size_t prefetch) {
    UpdateRange whole = arena_.skewed(skew);
    whole.prefetch_distance = prefetch;
    return timed([&] {
      arena_.for_each_part(pool_, whole,
                           [&](const UpdateRange& part) { cpu_adam::move_traffic(kernel_, part); });
    });
  }

  std::size_t calibrate(Pass pass) {
    return cpu_adam::calibrate_prefetch(
        [&](std::size_t distance) { return run(pass, {}, distance); });
  }

  /// The layout with the fastest traffic: a skew, or nothing for that of the update.
  std::optional<std::size_t> best_skew(std::size_t prefetch) {
    constexpr int kRounds = 5;
    Series here;
    std::array<Series, kLimitSkews.size()> skewed;
    for (int round = 0; round < kRounds; ++round) {
      here.ns.push_back(run(Pass::traffic, {}, prefetch));
      for (std::size_t k = 0; k < skewed.size(); ++k) {
        skewed[k].ns.push_back(run_limit(kLimitSkews[k], prefetch));
      }
    }
    const auto best = std::ranges::min_element(skewed, {}, &Series::median);
    if (here.median() <= best->median()) return std::nullopt;
    return kLimitSkews[static_cast<std::size_t>(best - skewed.begin())];
  }

  AdamArena& arena() { return arena_; }

 private:
  template <class Work>
  [[nodiscard]] double timed(const Work& work) const {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    return spent.count() / static_cast<double>(count_);
  }

  const Kernel& kernel_;
  std::size_t count_;
  AdamArena arena_;
  cpu_adam::WorkerPool& pool_;
  std::uint64_t steps_ = 0;
};

/// Whether three steps over a few leaves give the bits of the plain kernel.
bool is_exact(const AdamCase& what, const Kernel& kernel) {
  constexpr std::size_t kParameters = 3 * kLeafParameters + 100;
  const Kernel& plain =
      find_kernel(cpu_adam::Isa::scalar, what.gradient, what.parameter, what.format);
  cpu_adam::WorkerPool pool({.threads = 1});
  Runner mine(kParameters, 0, kernel, pool), theirs(kParameters, 0, plain, pool);
  for (int step = 0; step < 3; ++step) {
    mine.run(Pass::update, {}, 0);
    theirs.run(Pass::update, {}, 0);
  }
  const UpdateRange a = mine.arena().range({}, 0);
  const UpdateRange b = theirs.arena().range({}, 0);
  const std::size_t bytes = cpu_adam::make_layout(what.format, kParameters).bytes;
  return std::memcmp(a.master_in, b.master_in, bytes) == 0 &&
         std::memcmp(a.parameters_out, b.parameters_out, kParameters * size_of(what.parameter)) ==
             0;
}

void measure_denormals(Runner& ordinary, const Kernel& kernel, AdamMeasurement& result,
                       cpu_adam::WorkerPool& pool) {
  constexpr Runner::Slots kApart{.from = 0, .to = 1};
  Runner denormal(result.of.parameters, result.of.tile, kernel, pool);
  for (const std::size_t period : {10U, 1U}) {
    denormal.arena().make_denormal(pool, period);
    Series& series = period == 1 ? result.denormal_all : result.denormal_tenth;
    for (std::size_t k = 0; k < result.of.repetitions; ++k) {
      const double usual = ordinary.run(Pass::update, kApart, result.prefetch);
      series.ns.push_back(denormal.run(Pass::update, kApart, result.prefetch) / usual);
    }
  }
}

void measure_once(Runner& runner, AdamMeasurement& result) {
  constexpr Runner::Slots kApart{.from = 0, .to = 1};
  const std::size_t prefetch = result.traffic_prefetch;
  result.traffic.ns.push_back(runner.run(Pass::traffic, {}, prefetch));
  result.update.ns.push_back(runner.run(Pass::update, {}, result.prefetch));
  result.limit.ns.push_back(result.limit_skew ? runner.run_limit(*result.limit_skew, prefetch)
                                              : result.traffic.ns.back());
  result.traffic_apart.ns.push_back(runner.run(Pass::traffic, kApart, prefetch));
  result.update_apart.ns.push_back(runner.run(Pass::update, kApart, result.prefetch));
}

}  // namespace

double Series::median() const {
  if (ns.empty()) return 0;
  std::vector<double> sorted = ns;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 != 0 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double Series::minimum() const { return ns.empty() ? 0 : *std::min_element(ns.begin(), ns.end()); }

double median_ratio(const Series& over, const Series& under) {
  Series ratios;
  for (std::size_t k = 0; k < under.ns.size(); ++k) ratios.ns.push_back(over.ns[k] / under.ns[k]);
  return ratios.median();
}

std::vector<AdamMeasurement> measure_adam(std::span<const AdamCase> cases,
                                          const std::function<void()>& between) {
  SPILLWAY_ASSERT(!cases.empty());
  cpu_adam::WorkerPool pool({.threads = cases.front().threads, .binding = cpu_adam::Binding::core});
  std::vector<AdamMeasurement> results;
  std::vector<std::unique_ptr<Runner>> runners;
  for (const AdamCase& what : cases) {
    check(what.parameters > 0 && what.repetitions > 0, ErrorCode::invalid_argument,
          "bench adam: --size and --repetitions must be at least 1");
    const Kernel& kernel = find_kernel(what.isa, what.gradient, what.parameter, what.format);
    AdamMeasurement& result = results.emplace_back();
    result.of = what;
    result.exact = is_exact(what, kernel);
    result.bytes_per_parameter =
        cpu_adam::bytes_per_parameter(what.format, what.gradient, what.parameter);
    result.threads = pool.threads();
    Runner& runner =
        *runners.emplace_back(std::make_unique<Runner>(what.parameters, what.tile, kernel, pool));
    result.prefetch = what.prefetch ? *what.prefetch : runner.calibrate(Pass::update);
    result.traffic_prefetch = what.prefetch ? *what.prefetch : runner.calibrate(Pass::traffic);
    result.limit_skew = runner.best_skew(result.traffic_prefetch);
  }
  for (std::size_t k = 0; k < cases.front().repetitions; ++k) {
    for (std::size_t c = 0; c < cases.size(); ++c) {
      measure_once(*runners[c], results[c]);
    }
    if (between) between();
  }
  for (std::size_t c = 0; c < cases.size(); ++c) {
    const bool wide = cpu_adam::moment_size(cases[c].format) == 4;
    if (!cases[c].denormals || !wide) continue;
    const AdamCase& what = cases[c];
    measure_denormals(*runners[c],
                      find_kernel(what.isa, what.gradient, what.parameter, what.format), results[c],
                      pool);
  }
  return results;
}

}  // namespace spillway::bench
