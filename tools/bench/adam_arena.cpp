#include "tools/bench/adam_arena.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/base/random.hpp"
#include "runtime/base/stagger.hpp"

namespace spillway::bench {
namespace {

using cpu_adam::Kernel;
using cpu_adam::StateLayout;
using cpu_adam::UpdateRange;

/// Where arrays start in a huge page. A slot of state has up to four of them, a stagger apart.
constexpr std::size_t kGradientPlace = 4 * kStaggerBytes;
constexpr std::size_t kStatePlaces[] = {0, 8 * kStaggerBytes};
constexpr std::size_t kParameterPlaces[] = {5 * kStaggerBytes, 12 * kStaggerBytes};
/// Room to start an array anywhere in a huge page.
constexpr std::size_t kSlack = 2 * kHugePageBytes;

/// One leaf of state, packed.
struct SampleLeaf {
  explicit SampleLeaf(const Kernel& kernel)
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

  /// Into the outputs of a leaf or less.
  void copy_to(const Kernel& kernel, const UpdateRange& leaf) const {
    const std::size_t moment = cpu_adam::moment_size(kernel.format) * leaf.count;
    std::memcpy(leaf.master_out, state.data() + layout.master,
                cpu_adam::master_size(kernel.format) * leaf.count);
    std::memcpy(leaf.m_out, state.data() + layout.m, moment);
    std::memcpy(leaf.v_out, state.data() + layout.v, moment);
    std::memcpy(leaf.parameters_out, parameters.data(),
                size_of(kernel.parameter_dtype) * leaf.count);
  }

  StateLayout layout;
  std::vector<std::byte> state, parameters, gradient;
};

/// Calls body(leaf) for the leaves of a range.
template <class Body>
void for_each_leaf(const Kernel& kernel, const UpdateRange& part, const Body& body) {
  for (std::size_t i = 0; i < part.count; i += kLeafParameters) {
    body(cpu_adam::slice(kernel, part, i, std::min<std::size_t>(kLeafParameters, part.count - i)));
  }
}

}  // namespace

AdamArena::AdamArena(const Kernel& kernel, std::size_t count, std::size_t tile)
    : kernel_(kernel),
      count_(count),
      tile_(tile == 0 ? count : std::min<std::size_t>(round_up(tile, kLeafParameters), count)),
      full_(cpu_adam::make_layout(kernel.format, tile_)),
      last_(cpu_adam::make_layout(kernel.format, count_ % tile_)),
      state_bytes_(count_ / tile_ * full_.bytes + last_.bytes),
      gradient_(count * size_of(kernel.gradient_dtype) + kSlack, kGradientPlace),
      state_{HugeArray(state_bytes_, kStatePlaces[0]),
             HugeArray(state_bytes_ + 4 * kSlack, kStatePlaces[1])},
      parameters_{
          HugeArray(count * size_of(kernel.parameter_dtype), kParameterPlaces[0]),
          HugeArray(count * size_of(kernel.parameter_dtype) + kSlack, kParameterPlaces[1])} {}

UpdateRange AdamArena::range(Slots slots, std::size_t tile) const {
  const std::size_t first = tile * tile_;
  const std::size_t state = tile * full_.bytes;
  const std::size_t parameters = first * size_of(kernel_.parameter_dtype);
  UpdateRange range = cpu_adam::tile_range(
      layout_of(tile), state_[slots.from].data() + state, state_[slots.to].data() + state,
      gradient_.data() + first * size_of(kernel_.gradient_dtype),
      parameters_[slots.from].data() + parameters, parameters_[slots.to].data() + parameters);
  range.index = first;
  return range;
}

UpdateRange AdamArena::skewed(std::size_t skew) const {
  // The distance from `base` to `place` skews into a huge page that starts not before `base` + end.
  const auto start = [skew](const std::byte* base, std::size_t end, std::size_t place) {
    const auto address = reinterpret_cast<std::uintptr_t>(base);
    return round_up(address + end, kHugePageBytes) - address + place * skew;
  };
  const std::byte* const state = state_[1].data();
  const std::size_t moment = count_ * cpu_adam::moment_size(kernel_.format);
  StateLayout layout{.format = kernel_.format, .count = count_};
  layout.master = start(state, 0, 0);
  layout.m = start(state, layout.master + count_ * cpu_adam::master_size(kernel_.format), 1);
  layout.v = start(state, layout.m + moment, 2);
  layout.scales = round_up(layout.v + moment, kHugePageBytes) + 3 * skew;
  std::byte* const parameters = parameters_[1].data() + start(parameters_[1].data(), 0, 4);
  return cpu_adam::tile_range(layout, state, state_[1].data(),
                              gradient_.data() + start(gradient_.data(), 0, 5), parameters,
                              parameters);
}

void AdamArena::fill(cpu_adam::WorkerPool& pool) {
  const SampleLeaf sample(kernel_);
  const std::size_t gradient = size_of(kernel_.gradient_dtype);
  for (const std::size_t slot : {0U, 1U}) {
    for_each_part(pool, {.from = slot, .to = slot}, [&](const UpdateRange& part) {
      for_each_leaf(kernel_, part, [&](const UpdateRange& leaf) {
        sample.copy_to(kernel_, leaf);
        std::memcpy(gradient_.data() + leaf.index * gradient, sample.gradient.data(),
                    leaf.count * gradient);
      });
    });
  }
}

void AdamArena::make_denormal(cpu_adam::WorkerPool& pool, std::size_t period) {
  for_each_part(pool, {.from = 0, .to = 0}, [&](const UpdateRange& part) {
    for_each_leaf(kernel_, part, [&](const UpdateRange& leaf) {
      if (leaf.index / kLeafParameters % period != 0) return;
      std::fill_n(static_cast<float*>(leaf.m_out), leaf.count, 1e-40F);
      std::fill_n(static_cast<float*>(leaf.v_out), leaf.count, 1e-40F);
    });
  });
}

}  // namespace spillway::bench
