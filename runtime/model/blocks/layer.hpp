// One transformer layer, forward and backward, for every family: norm, attention, norm, MLP. The
// families differ in data only: which tensors there are and how the weights are stored. All layers
// of a model have the same shape, so one Layer serves them all.
//
// A layer runs in parts (LayerParts), one after the other, each for all micro-batches; what one
// leaves for the next lies in the saved activations, and in backward in the carried gradients, of
// each micro-batch. A part has columns of the layer's four gemms: forward, it writes these columns
// of the result; backward, it adds what they give to the input's gradient. In a layer of one part
// nothing is carried: its gradients lie in the workspace, in the compute dtype.
//
// In a tensor group, attention and MLP are a part each (TensorPart), with an input, an
// output and saved activations of its own. Forward, each makes what its heads or columns add to
// the output; the group's first rank adds bias and residual too, so that the sum over the ranks is
// the output. Backward ends in what the rank adds to the gradient of the norm's output, in
// `carried`; `finish_backward` goes on from the sum. Where tokens are shared out between matrices
// (TensorPart::sequence), `normalize` makes a rank's rows of what forward and backward read whole.
// Where ranks share key/value heads, the gemm of q, k and v is two or three, of the rows that the
// rank uses.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/model/blocks/bump_allocator.hpp"
#include "runtime/model/blocks/layer_parts.hpp"
#include "runtime/model/blocks/linear.hpp"
#include "runtime/model/transformer.hpp"

namespace spillway::model::blocks {

class Layer {
 public:
  Layer(const ModelConfig& config, BatchShape batch, const LayerParts& layer, Ops& ops);

  /// Bytes that all parts of a layer save or, where the layer's halves save apart, one of them.
  [[nodiscard]] Bytes saved_bytes(std::uint32_t part) const;
  [[nodiscard]] Bytes workspace_bytes() const { return workspace_bytes_; }
  [[nodiscard]] Bytes carried_bytes() const { return carried_bytes_; }
  [[nodiscard]] double forward_flops(std::uint32_t part) const;
  [[nodiscard]] double backward_flops(std::uint32_t part) const;
  /// Whether backward reads something of the part's forward pass.
  [[nodiscard]] bool feeds_backward(std::uint32_t part) const;
  /// Takes the tables of Transformer::constants in device memory.
  void bind_constants(offload::DeviceSpan<const float> constants) { angles_ = constants; }

  /// Runs forward. `shared` has the layer's own vectors; of a whole layer it is `parameters`.
  void forward(std::uint32_t part, const ForwardArguments& arguments);
  void normalize(std::uint32_t part, const NormalizeArguments& arguments);
  void backward(std::uint32_t part, const BackwardArguments& arguments);
  /// Runs the backward of the norm of a tensor group's part, from the sum in `carried`.
  void finish_backward(std::uint32_t part, const BackwardArguments& arguments);

 private:
  struct Norm {
    NormShape shape;
    TensorRange weight;
    std::optional<TensorRange> bias;
  };
  /// The layer's gemms: x [T, in] -> [T, out].
  enum class Gemm : std::uint8_t { qkv, attention_out, ffn_in, ffn_out };
  static constexpr std::size_t kGemms = 4;
  struct WholeGemm {
    std::uint64_t in = 0;
    std::uint64_t out = 0;
    std::vector<TensorRange> bias{};  ///< in the vectors, of these columns from the first on
    bool residual = false;
  };
  /// Describes columns [first, first + linear.columns()) of a gemm's result.
  struct Columns {
    Gemm gemm{};
    std::uint64_t first = 0;
    Linear linear;
  };
  /// What backward needs of the forward pass.
  struct Saved {
    Tensor qkv;        ///< [T, q | k | v]: rotated, or as projected where heads are normalized
    Tensor attention;  ///< [T, heads * head_dim]
    offload::DeviceSpan<float> log_sum;  ///< [batch, heads, sequence]
    Tensor middle;                       ///< [T, W] input plus attention
    Tensor ffn;                          ///< [T, F] before gelu, or [T, gate | up]
  };
  /// Temporaries of one operator at a time.
  struct Space {
    Tensor normal;                          ///< [T, W] a norm's output
    offload::DeviceSpan<float> statistics;  ///< of a norm of any kind, [rows, 2]
    offload::DeviceSpan<float> k_statistics;
    Tensor heads;       ///< [T, q | k] normalized and rotated, where heads are normalized
    Tensor ops;         ///< workspace of one op
    Tensor activation;  ///< [T, F]
    Tensor rounded;     ///< a sum, rounded; empty where nothing is to round
  };
  /// Gradients of what the gemms read and make. Those of inputs are fp32 sums in a layer that is
  /// cut, else elements of C.
  struct Gradients {
    Tensor normal;           ///< [T, W], of a norm's output
    Tensor sums;             ///< [T, W] in fp32, where several gemms of a part add up to `normal`
    Tensor activation, ffn;  ///< [T, F] and [T, ffn columns]; attention's share their memory
    Tensor attention, qkv;   ///< [T, heads * head_dim] and [T, q | k | v]
  };
  /// What a gemm reads and writes, whole.
  struct Flow {
    ConstTensor residual;
    Tensor out;
    ConstTensor out_gradient;
    Tensor input_gradient;
  };
  struct Heads3 {
    HeadRows<ConstTensor> q, k, v;
  };

  [[nodiscard]] std::uint64_t tokens() const;
  /// Number of tokens that norms run on.
  [[nodiscard]] std::uint64_t norm_tokens() const { return own_tokens(part_, tokens()); }
  [[nodiscard]] std::uint64_t q_columns() const;
  [[nodiscard]] std::uint64_t kv_columns() const;
  [[nodiscard]] std::uint64_t qkv_columns() const { return q_columns() + 2 * kv_columns(); }
  [[nodiscard]] std::uint64_t ffn_columns() const;
  /// Returns the columns of `matrix` from `first` on.
  template <class View>
  [[nodiscard]] HeadRows<View> columns(View matrix, std::uint64_t stride,
                                       std::uint64_t first) const {
    const std::uint64_t skipped = first * size_of(ops_->compute());
    return {matrix.subspan(skipped, matrix.size() - skipped), stride};
  }
  [[nodiscard]] const WholeGemm& shape(Gemm gemm) const {
    return gemms_[static_cast<std::size_t>(gemm)];
  }
  /// Whether attention and MLP are summed over a tensor group, each by itself.
  [[nodiscard]] bool halved() const { return part_.cuts(); }
  /// Returns what the MLP reads: the sum of the layer's input and attention.
  [[nodiscard]] ConstTensor middle(ConstTensor input, const Saved& saved) const {
    return halved() ? input : ConstTensor(saved.middle);
  }
  [[nodiscard]] const Norm& norm_of(Gemm gemm) const {
    return gemm == Gemm::qkv ? attention_norm_ : ffn_norm_;
  }
  [[nodiscard]] bool begins(const Columns& part) const { return part.first == 0; }
  [[nodiscard]] bool ends(const Columns& part) const {
    return part.first + part.linear.columns() == shape(part.gemm).out;
  }

  // layer_plan.cpp finds what the layer has, and lays out its memory.
  void find_norms(const BlockLayout& vectors);
  void find_gemms(const BlockLayout& vectors);
  void add_part(const BlockLayout& block);
  [[nodiscard]] Columns make_columns(Gemm gemm, std::uint64_t first, TensorRange weight) const;
  /// Returns the bias of columns of a gemm, which lie in one range.
  [[nodiscard]] std::optional<TensorRange> bias_of(const WholeGemm& gemm, std::uint64_t first,
                                                   std::uint64_t columns) const;
  void plan_attention();
  void measure();
  Saved allocate_saved(BumpAllocator& allocator, std::uint32_t part) const;
  Space allocate_space(BumpAllocator& allocator) const;
  /// Lays out `space.activation` and `space.rounded` too. A whole layer carries nothing.
  Gradients allocate_gradients(BumpAllocator& workspace, BumpAllocator& given, Space& space) const;
  /// Multiplications and additions of attention's two gemms.
  [[nodiscard]] double attention_flops() const;

  // layer_operators.cpp has all but the gemms.
  void apply_norm(const Norm& norm, ConstTensor vectors, ConstTensor input, Tensor out,
                  const Space& space);
  void rotate(Tensor rows, std::uint64_t stride, RopeDirection direction);
  /// Normalizes heads where the family does, rotates them, and says where q, k and v now are.
  Heads3 prepare_heads(ConstTensor vectors, ConstTensor qkv, const Space& space);
  /// Goes from the projected q, k and v to what attention makes of them.
  void attend(ConstTensor vectors, const Saved& saved, const Space& space);
  void backward_heads(const BackwardArguments& a, const Saved& saved, ConstTensor gradient,
                      Tensor qkv_gradient, const Space& space);
  void backward_norm(const Norm& norm, const BackwardArguments& a, ConstTensor input,
                     ConstTensor gradient, const Space& space);

  // layer.cpp has the order of it all.
  [[nodiscard]] Flow forward_flow(Gemm gemm, const ForwardArguments& a, const Saved& saved) const;
  [[nodiscard]] Flow backward_flow(Gemm gemm, const BackwardArguments& a,
                                   const Gradients& gradients) const;
  /// Returns the input of a gemm, recomputed where it is not saved. `same`: as in the call before,
  /// and still there.
  template <class Arguments>
  ConstTensor input_of(Gemm gemm, bool same, const Arguments& a, const Saved& saved,
                       const Space& space);
  void backward_gemm(const Columns& part, bool same, const BackwardArguments& a, const Saved& saved,
                     const Gradients& gradients, const Space& space);
  void backward_bias(const WholeGemm& gemm, const BackwardArguments& a, ConstTensor out_gradient,
                     const Space& space);
  /// Runs backward from the complete gradient of a gemm's input.
  void backward_operators(Gemm gemm, const BackwardArguments& a, const Saved& saved,
                          const Gradients& gradients, const Space& space);
  ConstTensor rounded(Tensor sums, const Space& space);

  ModelConfig config_;
  BatchShape batch_;
  Ops* ops_;
  bool cut_;
  bool splits_qkv_;  ///< keys and values are gemms of their own, of matrices that all ranks have
  TensorPart part_;
  Norm attention_norm_, ffn_norm_;
  std::optional<Norm> q_norm_, k_norm_;
  ActivationShape activation_;
  AttentionPlan attention_;
  std::array<WholeGemm, kGemms> gemms_;
  std::vector<std::vector<Columns>> parts_;
  offload::DeviceSpan<const float> angles_;  ///< of rope; empty where positions are embedded
  Bytes ops_workspace_, workspace_bytes_, carried_bytes_;
};

}  // namespace spillway::model::blocks
