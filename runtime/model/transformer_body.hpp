// The two ways of running a transformer behind the one interface: whole layers, or tiles of them.
#pragma once

#include <memory>

#include "runtime/model/transformer.hpp"

namespace spillway::model {

/// As the methods of Transformer that are named alike.
class TransformerBody {
 public:
  virtual ~TransformerBody() = default;
  [[nodiscard]] virtual Bytes saved_bytes(std::uint32_t block) const = 0;
  [[nodiscard]] virtual Bytes carried_bytes() const = 0;
  [[nodiscard]] virtual bool feeds_backward(std::uint32_t block) const = 0;
  [[nodiscard]] virtual Bytes workspace_bytes() const = 0;
  [[nodiscard]] virtual double forward_flops(std::uint32_t block) const = 0;
  [[nodiscard]] virtual double backward_flops(std::uint32_t block) const = 0;
  virtual void bind_constants(offload::DeviceSpan<const float> constants) = 0;
  virtual void forward(const ForwardArguments& arguments) = 0;
  virtual void backward(const BackwardArguments& arguments) = 0;
  virtual void loss(const LossArguments& arguments) = 0;
  virtual void logits(const Transformer::LogitsArguments& arguments) = 0;
};

/// A block's padding has no gradient; norms and updates run over it.
void clear_padding(Ops& ops, const BlockLayout& block, offload::DeviceSpan<float> gradients,
                   bool first);

/// `layout` is that of `config`, cut or not, and must outlive the result, as `ops` must.
[[nodiscard]] std::unique_ptr<TransformerBody> make_whole_model(const ModelConfig& config,
                                                                BatchShape batch,
                                                                const ModelLayout& layout,
                                                                Ops& ops);
[[nodiscard]] std::unique_ptr<TransformerBody> make_tiled_model(const ModelConfig& config,
                                                                BatchShape batch,
                                                                const ModelLayout& layout,
                                                                Ops& ops);

}  // namespace spillway::model
