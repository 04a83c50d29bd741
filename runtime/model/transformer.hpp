// The transformer as the engine sees it: blocks that run forward and backward on device memory.
// Written once over `Ops`; host and CUDA differ only in the Ops that they bring.
//
// Threads: calls run inside the compute stream's order (Stream::submit), one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "offload/device_span.hpp"
#include "runtime/base/dtype.hpp"
#include "runtime/base/units.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/model/parameter_layout.hpp"

namespace spillway::model {

class Ops;

struct BatchShape {
  std::uint32_t batch = 0;     ///< windows in a micro-batch
  std::uint32_t sequence = 0;  ///< tokens in a window
};

/// One block and one micro-batch. T = batch * sequence tokens, W = width, C = compute dtype.
///
/// Where matrices are cut into tiles (`operator_tile`), block 0 is never run: it holds the vectors
/// that all others read, their `shared`. The blocks of a layer run in order, in backward in reverse
/// order, and meet in `saved` and `carried` of their micro-batch. The blocks of the embedding fill
/// one output, those of the head make one loss.
struct ForwardArguments {
  std::uint32_t block = 0;
  offload::DeviceSpan<const std::byte> parameters;  ///< [padded] C
  offload::DeviceSpan<const std::byte> shared{};    ///< block 0's [padded] C, for tiles
  offload::DeviceSpan<const std::int32_t> tokens;   ///< [batch, sequence]; embedding only
  offload::DeviceSpan<const std::byte> input;       ///< [T, W] C; empty for the embedding
  offload::DeviceSpan<const std::byte> normal{};    ///< [T, W] C, where tokens are shared out
  /// [T, W] C. It may be empty in a tiled layer: only what backward needs, see `feeds_backward`.
  offload::DeviceSpan<std::byte> output;
  /// Has saved_bytes(block), or none: nothing is kept. A tiled layer always has it.
  offload::DeviceSpan<std::byte> saved;
  offload::DeviceSpan<std::byte> workspace;
};

struct BackwardArguments {
  std::uint32_t block = 0;
  offload::DeviceSpan<const std::byte> parameters;  ///< empty for the embedding
  offload::DeviceSpan<const std::byte> shared{};    ///< block 0's, for tiles
  offload::DeviceSpan<const std::int32_t> tokens;
  offload::DeviceSpan<const std::byte> input;
  offload::DeviceSpan<const std::byte> normal{};  ///< [T, W] C, where tokens are shared out
  offload::DeviceSpan<const std::byte> saved;     ///< as forward filled it
  offload::DeviceSpan<std::byte> carried{};       ///< carried_bytes(), for tiles
  offload::DeviceSpan<std::byte>
      boundary_gradient;                          ///< [T, W] C: of the output in, of the input out
  offload::DeviceSpan<float> gradients;           ///< [padded] fp32
  offload::DeviceSpan<float> shared_gradients{};  ///< block 0's [padded] fp32, for tiles
  bool first = false;                             ///< true: overwrite the gradients; false: add
  offload::DeviceSpan<std::byte> workspace;
};

/// The passes of a head that a tensor group shares out, one after the other.
enum class LossPass : std::uint8_t {
  scan,      ///< writes `scans`, of this rank's part of the vocabulary
  gradient,  ///< reads `gathered`; writes `scans`, the loss and, where it is given, `carried`
  finish,    ///< reads the sum of `carried` over the ranks; writes the boundary gradient
};

struct VocabularyScan;

/// A head in tiles runs twice: all its blocks without a boundary gradient, which makes the loss,
/// then all in reverse order with one.
struct LossArguments {
  std::uint32_t block = 0;                          ///< with tiles: one of ModelLayout::loss_blocks
  offload::DeviceSpan<const std::byte> parameters;  ///< the head block's
  offload::DeviceSpan<const std::byte> shared{};    ///< block 0's, for tiles
  /// For a tied head, block 0's; with tiles those of `block`.
  offload::DeviceSpan<const std::byte> tied_parameters;
  offload::DeviceSpan<const std::int32_t> targets;  ///< [batch, sequence]
  offload::DeviceSpan<const std::byte> input;       ///< [T, W] C
  offload::DeviceSpan<double> loss_sum;             ///< [1], sum over targets, overwritten
  /// d(objective)/d(loss of one target): loss scale / targets in the step.
  float gradient_scale = 0;
  offload::DeviceSpan<std::byte> boundary_gradient;  ///< [T, W] C out; empty: loss only
  offload::DeviceSpan<std::byte> carried{};          ///< carried_bytes(), for tiles
  offload::DeviceSpan<float> gradients;              ///< head block [padded] fp32
  offload::DeviceSpan<float> shared_gradients{};     ///< block 0's [padded] fp32, for tiles
  /// For a tied head, the gradients of this second use: [vocab * W] fp32; with tiles the block's.
  offload::DeviceSpan<float> tied_gradients;
  bool first = false;
  // These are for a tensor group alone:
  LossPass pass = LossPass::scan;
  offload::DeviceSpan<const std::byte> normal{};         ///< [T, W] C, where tokens are shared out
  offload::DeviceSpan<VocabularyScan> scans{};           ///< [T]
  offload::DeviceSpan<const VocabularyScan> gathered{};  ///< [ranks, T]
  offload::DeviceSpan<std::byte> workspace;
};

/// The norm of a block of a tensor group that shares out tokens (TensorPart::sequence). A rank has
/// T / ranks of them, its own. Then `input` of the other calls, the boundary gradient that ends a
/// backward, and `carried` where it is a sum, are of its own tokens too.
struct NormalizeArguments {
  std::uint32_t block = 0;
  offload::DeviceSpan<const std::byte> parameters;
  offload::DeviceSpan<const std::byte> shared{};  ///< Transformer's own
  offload::DeviceSpan<const std::byte> input;     ///< [T / ranks, W] C
  offload::DeviceSpan<std::byte> output;          ///< [T / ranks, W] C
  offload::DeviceSpan<std::byte> workspace;
};

class Transformer {
 public:
  /// `ops` must outlive this and have been made for `compute`. `operator_tile`: see ModelLayout.
  Transformer(const ModelConfig& config, BatchShape shape, DType compute, Ops& ops,
              std::uint64_t operator_tile = 0);
  /// Makes one part of a model that a tensor group shares out. What its calls make is to be added
  /// up over the ranks: the output of each `forward`, and `carried` of each `backward` and of the
  /// loss, of which `finish_backward` and LossPass::finish take the sum.
  Transformer(const ModelConfig& config, BatchShape shape, DType compute, Ops& ops,
              const TensorPart& part);
  ~Transformer();

  [[nodiscard]] const ModelLayout& layout() const;
  [[nodiscard]] Bytes boundary_bytes() const;
  /// Bytes that a rank of a tensor group adds to an output: [T, W] C, of all tokens.
  [[nodiscard]] Bytes summed_bytes() const;
  /// Bytes of the saved activations of one micro-batch, which backward needs; the same from
  /// recomputation. Those of a tiled layer belong to its first block.
  [[nodiscard]] Bytes saved_bytes(std::uint32_t block) const;
  /// Bytes that the blocks of a tiled layer leave each other in backward, and those of a tiled head
  /// between their passes, for one micro-batch; in a tensor group, bytes that the ranks add up. 0
  /// without either.
  [[nodiscard]] Bytes carried_bytes() const;
  /// Whether recomputation of the block's layer runs this block.
  [[nodiscard]] bool feeds_backward(std::uint32_t block) const;
  /// Bytes of the temporaries of the largest call on any block.
  [[nodiscard]] Bytes workspace_bytes() const;
  /// Bytes of what every layer reads and no step changes: rotary tables. fp32; 0 where there are
  /// none.
  [[nodiscard]] Bytes constant_bytes() const;
  [[nodiscard]] std::vector<float> constants() const;
  /// Takes `constants` in device memory, for all calls from now on.
  void bind_constants(offload::DeviceSpan<const float> constants);
  /// FLOPs of one micro-batch; backward is without recomputation. The head's forward is that of the
  /// loss.
  [[nodiscard]] double forward_flops(std::uint32_t block) const;
  [[nodiscard]] double backward_flops(std::uint32_t block) const;
  /// FLOPs of the loss on one of ModelLayout::loss_blocks; its gradients take twice as many.
  [[nodiscard]] double loss_flops(std::uint32_t block) const;

  void forward(const ForwardArguments& arguments);
  /// Makes this rank's rows of what a layer's forward and backward, or the head, take as `normal`.
  void normalize(const NormalizeArguments& arguments);
  void backward(const BackwardArguments& arguments);
  /// Ends the backward of a layer of a tensor group, from the sum in `carried`.
  void finish_backward(const BackwardArguments& arguments);
  void loss(const LossArguments& arguments);
  /// Writes the logits of the last position of each window, for generation and tests: [rows, vocab]
  /// fp32, rows Ops::logits_stride apart; with `all_positions`, of every position. Refused with
  /// tiles.
  struct LogitsArguments {
    offload::DeviceSpan<const std::byte> parameters;
    offload::DeviceSpan<const std::byte> tied_parameters;
    offload::DeviceSpan<const std::byte> input;
    offload::DeviceSpan<float> logits;
    bool all_positions = false;
    offload::DeviceSpan<std::byte> workspace;
  };
  void logits(const LogitsArguments& arguments);

 private:
  struct Body;
  Transformer(const ModelConfig& config, BatchShape shape, DType compute, Ops& ops,
              ModelLayout layout);

  ModelLayout layout_;
  std::unique_ptr<Body> body_;
};

}  // namespace spillway::model
