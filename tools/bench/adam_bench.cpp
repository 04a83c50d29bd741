#include "tools/bench/adam_bench.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "cpu_adam/calibration.hpp"
#include "cpu_adam/traffic.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/random.hpp"
#include "runtime/base/units.hpp"
#include "tools/bench/huge_array.hpp"

namespace spillway::bench {
namespace {

using cpu_adam::Kernel;
using cpu_adam::StateLayout;
using cpu_adam::UpdateRange;
using cpu_adam::UpdateScalars;

/// Two slots of state and parameters, and a gradient.
class Arena {
 public:
  Arena(const Kernel& kernel, std::size_t count)
      : kernel_(kernel),
        layout_(cpu_adam::make_layout(kernel.format, count)),
        gradient_(count * size_of(kernel.gradient_dtype)),
        state_{HugeArray(layout_.bytes), HugeArray(layout_.bytes)},
        parameters_{HugeArray(count * size_of(kernel.parameter_dtype)),
                    HugeArray(count * size_of(kernel.parameter_dtype))} {}

  [[nodiscard]] UpdateRange range(std::size_t from, std::size_t to) const {
    return cpu_adam::tile_range(layout_, state_[from].data(), state_[to].data(), gradient_.data(),
                                parameters_[from].data(), parameters_[to].data());
  }

  /// First touch by the workers that will use each page, then values: gradients and masters of
  /// ordinary size, moments zero. The same values every few leaves: only their kind matters.
  void fill(cpu_adam::WorkerPool& pool) {
    const Wide sample(kernel_);
    in_parallel(pool, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; i += kLeafParameters) {
        const std::size_t n = std::min(kLeafParameters, last - i);
        copy_leaf(sample, 0, i, n);
        copy_leaf(sample, 1, i, n);
        std::memcpy(gradient_.data() + i * size_of(kernel_.gradient_dtype), sample.gradient.data(),
                    n * size_of(kernel_.gradient_dtype));
      }
    });
  }

  /// In slot 0, fp32 moments only: every `period`-th leaf gets values below the normal range.
  void make_denormal(cpu_adam::WorkerPool& pool, std::size_t period) {
    in_parallel(pool, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; i += kLeafParameters) {
        if (i / kLeafParameters % period != 0) continue;
        for (std::size_t k = i; k < std::min(i + kLeafParameters, last); ++k) {
          const float tiny = 1e-40F;
          std::memcpy(state_[0].data() + layout_.m + 4 * k, &tiny, 4);
          std::memcpy(state_[0].data() + layout_.v + 4 * k, &tiny, 4);
        }
      }
    });
  }

  template <class Body>
  void in_parallel(cpu_adam::WorkerPool& pool, const Body& body) const {
    pool.submit([&] { pool.parallel_for(layout_.count, kLeafParameters, body); }).wait();
  }

 private:
  /// One leaf of state, packed.
  struct Wide {
    explicit Wide(const Kernel& kernel)
        : layout(cpu_adam::make_layout(kernel.format, kLeafParameters)),
          state(layout.bytes),
          parameters(kLeafParameters * sizeof(float)),
          gradient(kLeafParameters * sizeof(float)) {
      std::vector<float> master(kLeafParameters), g(kLeafParameters);
      for (std::size_t i = 0; i < kLeafParameters; ++i) {
        const auto [a, b] = normal_pair(random_block(1, {.stream = 0, .index = i}));
        master[i] = static_cast<float>(0.02 * a);
        g[i] = static_cast<float>(1e-3 * b);
      }
      cpu_adam::pack_state(layout, {.master = master, .m = {}, .v = {}}, state.data(),
                           parameters.data());
      cpu_adam::cast_parameters(cpu_adam::Isa::scalar, kernel.parameter_dtype, master.data(),
                                parameters.data(), kLeafParameters);
      cpu_adam::round_gradient(cpu_adam::Isa::scalar, kernel.gradient_dtype, g.data(),
                               gradient.data(), kLeafParameters);
    }
    StateLayout layout;
    std::vector<std::byte> state, parameters, gradient;
  };

  void copy_leaf(const Wide& sample, std::size_t slot, std::size_t i, std::size_t n) {
    const std::size_t master = cpu_adam::master_size(kernel_.format);
    const std::size_t moment = cpu_adam::moment_size(kernel_.format);
    std::byte* const to = state_[slot].data();
    const std::byte* const from = sample.state.data();
    std::memcpy(to + layout_.master + i * master, from + sample.layout.master, n * master);
    std::memcpy(to + layout_.m + i * moment, from + sample.layout.m, n * moment);
    std::memcpy(to + layout_.v + i * moment, from + sample.layout.v, n * moment);
    const std::size_t parameter = size_of(kernel_.parameter_dtype);
    std::memcpy(parameters_[slot].data() + i * parameter, sample.parameters.data(), n * parameter);
  }

  const Kernel& kernel_;
  StateLayout layout_;
  HugeArray gradient_;
  HugeArray state_[2];
  HugeArray parameters_[2];
};

enum class Pass { traffic, update };

/// One pass over the arena; its steps are counted so that the bias correction is a real one.
class Runner {
 public:
  Runner(std::size_t parameters, const Kernel& kernel, cpu_adam::WorkerPool& pool)
      : kernel_(kernel), count_(parameters), arena_(kernel, parameters), pool_(pool) {
    arena_.fill(pool_);
  }

  /// Nanoseconds a parameter.
  double run(Pass pass, std::size_t from, std::size_t to, std::size_t prefetch) {
    UpdateRange range = arena_.range(from, to);
    range.prefetch_distance = prefetch;
    const UpdateScalars scalars = cpu_adam::make_scalars({.weight_decay = 0.01}, ++steps_, 0.5);
    const auto start = std::chrono::steady_clock::now();
    arena_.in_parallel(pool_, [&](std::size_t first, std::size_t last) {
      const UpdateRange part = slice(kernel_, range, first, last - first);
      if (pass == Pass::traffic) {
        cpu_adam::move_traffic(kernel_, part);
      } else {
        kernel_.update(scalars, part);
      }
    });
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    return spent.count() / static_cast<double>(count_);
  }

  std::size_t calibrate(Pass pass) {
    return cpu_adam::calibrate_prefetch(
        [&](std::size_t distance) { return run(pass, 0, 0, distance); });
  }

  Arena& arena() { return arena_; }

 private:
  const Kernel& kernel_;
  std::size_t count_;
  Arena arena_;
  cpu_adam::WorkerPool& pool_;
  std::uint64_t steps_ = 0;
};

/// Whether three steps over a few leaves give the bits of the plain kernel.
bool is_exact(const AdamCase& what, const Kernel& kernel) {
  constexpr std::size_t kParameters = 3 * kLeafParameters + 100;
  const Kernel& plain =
      find_kernel(cpu_adam::Isa::scalar, what.gradient, what.parameter, what.format);
  cpu_adam::WorkerPool pool({.threads = 1});
  Runner mine(kParameters, kernel, pool), theirs(kParameters, plain, pool);
  for (int step = 0; step < 3; ++step) {
    mine.run(Pass::update, 0, 0, 0);
    theirs.run(Pass::update, 0, 0, 0);
  }
  const UpdateRange a = mine.arena().range(0, 0);
  const UpdateRange b = theirs.arena().range(0, 0);
  const std::size_t bytes = cpu_adam::make_layout(what.format, kParameters).bytes;
  return std::memcmp(a.master_in, b.master_in, bytes) == 0 &&
         std::memcmp(a.parameters_out, b.parameters_out, kParameters * size_of(what.parameter)) ==
             0;
}

void measure_denormals(Runner& ordinary, const Kernel& kernel, AdamMeasurement& result,
                       cpu_adam::WorkerPool& pool) {
  Runner denormal(result.of.parameters, kernel, pool);
  for (const std::size_t period : {10U, 1U}) {
    denormal.arena().make_denormal(pool, period);
    Series& series = period == 1 ? result.denormal_all : result.denormal_tenth;
    for (std::size_t k = 0; k < result.of.repetitions; ++k) {
      const double usual = ordinary.run(Pass::update, 0, 1, result.prefetch);
      series.ns.push_back(denormal.run(Pass::update, 0, 1, result.prefetch) / usual);
    }
  }
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

double AdamMeasurement::fraction_of_limit() const {
  Series ratios;
  for (std::size_t k = 0; k < update.ns.size(); ++k) {
    ratios.ns.push_back(traffic.ns[k] / update.ns[k]);
  }
  return ratios.median();
}

double speedup(const AdamMeasurement& slower, const AdamMeasurement& faster) {
  Series ratios;
  for (std::size_t k = 0; k < faster.update.ns.size(); ++k) {
    ratios.ns.push_back(slower.update.ns[k] / faster.update.ns[k]);
  }
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
    Runner& runner = *runners.emplace_back(std::make_unique<Runner>(what.parameters, kernel, pool));
    result.prefetch = what.prefetch ? *what.prefetch : runner.calibrate(Pass::update);
    result.traffic_prefetch = what.prefetch ? *what.prefetch : runner.calibrate(Pass::traffic);
  }
  for (std::size_t k = 0; k < cases.front().repetitions; ++k) {
    for (std::size_t c = 0; c < cases.size(); ++c) {
      AdamMeasurement& result = results[c];
      Runner& runner = *runners[c];
      result.traffic.ns.push_back(runner.run(Pass::traffic, 0, 0, result.traffic_prefetch));
      result.update.ns.push_back(runner.run(Pass::update, 0, 0, result.prefetch));
      result.traffic_apart.ns.push_back(runner.run(Pass::traffic, 0, 1, result.traffic_prefetch));
      result.update_apart.ns.push_back(runner.run(Pass::update, 0, 1, result.prefetch));
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
