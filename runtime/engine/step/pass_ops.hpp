// PassOps: the ops of FWD-BWD. It makes the arguments of the transformer's passes from what an op
// declares. Called where the compute stream runs.
#pragma once

#include <cstdint>

#include "runtime/engine/step/op_context.hpp"

namespace spillway::engine {

class PassOps {
 public:
  explicit PassOps(const OpContext& context) : context_(context) {}

  void forward(const plan::Op& op) const;
  void backward(const plan::Op& op) const;
  void loss(const plan::Op& op) const;

 private:
  /// Returns the arguments that passes of all kinds share.
  template <class Arguments>
  [[nodiscard]] Arguments common_arguments(const plan::Op& op) const;
  [[nodiscard]] model::ForwardArguments forward_arguments(const plan::Op& op) const;
  [[nodiscard]] offload::DeviceSpan<std::byte> tied_parameters(const plan::Op& op,
                                                               std::uint32_t block) const;
  [[nodiscard]] bool normalizes(const plan::Op& op) const;
  void loss_of_group(const plan::Op& op) const;
  void add_loss_gradients(const plan::Op& op, model::LossArguments& arguments) const;
  void logits(const plan::Op& op) const;

  const OpContext& context_;
};

}  // namespace spillway::engine
