// A transformer layer whose matrices are cut into tiles of rows (ModelLayout, `operator_tile`). Its
// blocks run one after the other, each for all micro-batches; what one leaves for the next lies in
// the saved activations, and in backward in the carried gradients, of each micro-batch.
//
// A row of a weight [out, in] is a column of the product: forward, a tile writes columns of the
// result; backward, it adds its part of the input's gradient in fp32, which is rounded once, after
// the last tile.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/model/layer_core.hpp"

namespace spillway::model {

class TiledLayer final : public LayerCore {
 public:
  /// `blocks`: those of one layer; `vectors`: the layer's, as a block of their own.
  TiledLayer(const ModelConfig& config, BatchShape batch, std::span<const BlockLayout> blocks,
             const BlockLayout& vectors, Ops& ops);

  [[nodiscard]] Bytes carried_bytes() const { return carried_bytes_; }
  [[nodiscard]] double forward_flops(std::uint32_t tile) const;
  [[nodiscard]] double backward_flops(std::uint32_t tile) const;
  /// Backward reads something of the tile's forward pass.
  [[nodiscard]] bool feeds_backward(std::uint32_t tile) const;

  /// `shared` of the arguments is the layer's own part of the vectors; `tile` counts its blocks.
  void forward(std::uint32_t tile, const ForwardArguments& arguments);
  void backward(std::uint32_t tile, const BackwardArguments& arguments);

 private:
  enum class Product : std::uint8_t { qkv, attention_out, ffn_in, ffn_out };
  static constexpr std::size_t kProducts = 4;

  /// One of the layer's products: x [T, in] -> [T, out].
  struct Whole {
    std::uint64_t in = 0;
    std::uint64_t out = 0;
    std::optional<TensorRange> bias;  ///< in the vectors
    bool residual = false;
  };
  /// The part of a product that a tile has: columns of its result.
  struct Part {
    Product product{};
    std::uint64_t first = 0;
    std::uint64_t columns = 0;
    TensorRange weight;  ///< in the tile's block
    MatmulPlan forward, input_gradient, weight_gradient;
  };
  /// What waits in backward from tile to tile, of one micro-batch. The MLP's and attention's parts
  /// share memory.
  struct Carried {
    offload::DeviceSpan<float> normal;      ///< [T, W] sum: gradient of a norm's output
    offload::DeviceSpan<float> activation;  ///< [T, F] sum
    Tensor ffn_gradient;                    ///< [T, ffn columns]
    offload::DeviceSpan<float> attention;   ///< [T, heads * head_dim] sum
    Tensor qkv_gradient;                    ///< [T, q | k | v]
  };
  struct Space {
    Common common;
    Tensor activation;  ///< [T, F]
    Tensor rounded;     ///< a sum, rounded; empty where C is fp32
  };
  /// What a product reads and writes, whole.
  struct Flow {
    ConstTensor input, residual;
    Tensor out;
    ConstTensor out_gradient;
    offload::DeviceSpan<float> input_sum;
  };

  void find_products(const BlockLayout& vectors);
  void cut(const BlockLayout& block);
  void prepare(Part& part);
  [[nodiscard]] const Whole& whole(const Part& part) const {
    return products_[static_cast<std::size_t>(part.product)];
  }
  [[nodiscard]] bool begins(const Part& part) const { return part.first == 0; }
  [[nodiscard]] bool ends(const Part& part) const {
    return part.first + part.columns == whole(part).out;
  }
  [[nodiscard]] double flops(const Part& part) const;
  Space carve_space(Carver& carver) const;
  Carried carve_carried(Carver& carver) const;

  /// The input of the part's product, computed anew where it is not saved.
  ConstTensor input_of(const Part& part, ConstTensor vectors, ConstTensor input,
                       const SavedOut& saved, const Space& space);
  void multiply(const Part& part, ConstTensor parameters, ConstTensor vectors, const Flow& flow,
                const Space& space);
  void multiply_back(const Part& part, const BackwardArguments& a, const Flow& flow,
                     const Space& space);
  /// All of the gradient of a product's input is there.
  void finish_backward(const Part& part, const BackwardArguments& vectors, const SavedOut& saved,
                       const Carried& carried, const Space& space);
  Tensor round(offload::DeviceSpan<float> sums, const Space& space);

  std::array<Whole, kProducts> products_;
  std::vector<std::vector<Part>> tiles_;
  Bytes carried_bytes_;
};

}  // namespace spillway::model
