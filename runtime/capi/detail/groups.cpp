#include "runtime/capi/detail/groups.hpp"

#include <fmt/format.h>

#include "runtime/base/error.hpp"
#include "runtime/capi/detail/structures.hpp"

namespace spillway::capi {

cpu_adam::AdamOptions read_group(const spillway_group* given) {
  const auto group = read_structure(given, "the spillway_group");
  check(group.optimizer >= SPILLWAY_ADAM && group.optimizer <= SPILLWAY_SGD,
        ErrorCode::invalid_argument,
        fmt::format("optimizer is {}: there are SPILLWAY_ADAM (0), SPILLWAY_ADAGRAD, SPILLWAY_LION "
                    "and SPILLWAY_SGD (3)",
                    group.optimizer));
  check(group.decay_mode == SPILLWAY_DECAY_DECOUPLED || group.decay_mode == SPILLWAY_DECAY_L2,
        ErrorCode::invalid_argument,
        fmt::format("decay_mode is {}: there are SPILLWAY_DECAY_DECOUPLED (0) and "
                    "SPILLWAY_DECAY_L2 (1)",
                    group.decay_mode));
  check(group.bias_correction == 0 || group.bias_correction == 1, ErrorCode::invalid_argument,
        fmt::format("bias_correction is {}: it is 0 or 1", group.bias_correction));
  const cpu_adam::AdamOptions options{
      .lr = group.lr,
      .beta1 = group.beta1,
      .beta2 = group.beta2,
      .eps = group.eps,
      .weight_decay = group.weight_decay,
      .decay_mode = group.decay_mode == SPILLWAY_DECAY_L2 ? cpu_adam::DecayMode::l2
                                                          : cpu_adam::DecayMode::decoupled,
      .bias_correction = group.bias_correction == 1,
      .optimizer = static_cast<cpu_adam::Optimizer>(group.optimizer)};
  static_cast<void>(cpu_adam::make_scalars(options, /*t=*/1, /*gradient_scale=*/1));  // checks them
  return options;
}

spillway_group group_of(const cpu_adam::AdamOptions& options) {
  spillway_group group = SPILLWAY_GROUP_INIT;
  group.optimizer = static_cast<std::int32_t>(options.optimizer);
  group.lr = options.lr;
  group.beta1 = options.beta1;
  group.beta2 = options.beta2;
  group.eps = options.eps;
  group.weight_decay = options.weight_decay;
  group.decay_mode =
      options.decay_mode == cpu_adam::DecayMode::l2 ? SPILLWAY_DECAY_L2 : SPILLWAY_DECAY_DECOUPLED;
  group.bias_correction = options.bias_correction ? 1 : 0;
  return group;
}

static_assert(static_cast<int>(cpu_adam::Optimizer::adam) == SPILLWAY_ADAM &&
              static_cast<int>(cpu_adam::Optimizer::adagrad) == SPILLWAY_ADAGRAD &&
              static_cast<int>(cpu_adam::Optimizer::lion) == SPILLWAY_LION &&
              static_cast<int>(cpu_adam::Optimizer::sgd) == SPILLWAY_SGD);

}  // namespace spillway::capi
