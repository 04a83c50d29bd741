// How many activations to offload instead of recompute, searched and not guessed.
//
// Offloading a group of activations moves its bytes down in forward and up in backward, and spares
// backward the FLOPs that would recompute it. With the groups in order of FLOPs saved per byte,
// forward plus backward time is convex in the bytes offloaded. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/base/units.hpp"

namespace spillway::plan {

/// Activations that are offloaded together: of one layer, say.
struct ActivationGroup {
  Bytes bytes{};
  double recompute_flops = 0;  ///< spared in backward if the group is offloaded
};

/// Everything else a step does meanwhile. Rates are per second; a rate may be 0 only if nothing
/// uses it.
struct ActivationSetting {
  double gpu_flops = 0;
  double h2d = 0;
  double d2h = 0;
  double nvme_read = 0;
  double nvme_write = 0;
  double forward_flops = 0;
  double backward_flops = 0;  ///< without recomputation
  Bytes parameters_up{};      ///< in forward, and again in backward
  Bytes gradients_down{};
  double update_seconds = 0;  ///< of the CPU, beside backward
  Bytes host_room{};          ///< activations beyond this spill to disk
};

struct PassSeconds {
  double forward = 0;
  double backward = 0;

  [[nodiscard]] double total() const { return forward + backward; }
};

/// T_fwd and T_bwd of theory: each the slowest of its resources. `recompute_flops` are those of the
/// groups that are not offloaded. Throws `Error{invalid_argument}` if a resource in use has no
/// rate.
[[nodiscard]] PassSeconds pass_seconds(const ActivationSetting& setting, Bytes offloaded,
                                       double recompute_flops);

struct ActivationChoice {
  std::vector<std::size_t>
      offloaded{};  ///< indices into the groups, most FLOPs saved per byte first
  Bytes bytes{};
  PassSeconds seconds{};
};

/// The prefix of the groups, ordered by FLOPs saved per byte, with the least total time; of equals
/// the one that moves least. Tries every prefix.
[[nodiscard]] ActivationChoice choose_activations(const ActivationSetting& setting,
                                                  std::span<const ActivationGroup> groups);

}  // namespace spillway::plan
