// The row-wise half of the host Ops: norm, activation, embedding, loss and sums on vector kernels.
// `HostOps` adds matrix products and attention.
#pragma once

#include <algorithm>

#include "runtime/model/host/kernels.hpp"
#include "runtime/model/ops.hpp"

namespace spillway::model::host {

template <class T>
inline constexpr DType kDtype = DType::fp32;
template <>
inline constexpr DType kDtype<Bf16> = DType::bf16;
template <>
inline constexpr DType kDtype<Fp16> = DType::fp16;

/// Elements worth a thread's while: waking one costs as much as visiting some thousand of them.
inline constexpr std::size_t kUnit = 8192;
/// Items of `elements` each that make a unit.
constexpr std::size_t items_in_unit(std::size_t elements) {
  return std::max<std::size_t>(1, kUnit / std::max<std::size_t>(1, elements));
}

constexpr std::uint64_t align_bytes(std::uint64_t bytes) { return round_up(bytes, 64); }

template <class T>
Heads<T> heads(HeadRows<Tensor> view) {
  return {reinterpret_cast<T*>(view.data.address()), view.stride};
}
template <class T>
Heads<const T> heads(HeadRows<ConstTensor> view) {
  return {reinterpret_cast<const T*>(view.data.address()), view.stride};
}

/// T: float, Bf16 or Fp16. `table` must outlive this.
template <class T>
class RowOps : public Ops {
 public:
  RowOps(int threads, const KernelTable<T>& table) : threads_(threads), table_(table) {}

  [[nodiscard]] DType compute() const final { return kDtype<T>; }
  [[nodiscard]] Bytes reduction_workspace(std::uint64_t rows, std::uint64_t columns) const final;

  /// None: each thread owns columns of the table.
  [[nodiscard]] Bytes embedding_workspace(const EmbeddingShape& /*shape*/) const final {
    return Bytes{};
  }

  void norm_forward(const NormShape& shape, const NormForwardArguments& a) final;
  void norm_backward(const NormShape& shape, const NormBackwardArguments& a) final;
  void activation_forward(const ActivationShape& shape, ConstTensor input, Tensor out) final;
  void activation_backward(const ActivationShape& shape,
                           const ActivationBackwardArguments& a) final;
  void embedding_forward(const EmbeddingShape& shape, Tokens tokens, ConstTensor table,
                         ConstTensor positions, Tensor out) final;
  void embedding_backward(const EmbeddingShape& shape, Tokens tokens, ConstTensor out_gradient,
                          Gradient table, Gradient positions, Tensor workspace) final;
  void cross_entropy(const CrossEntropyArguments& a) final;
  void scan_vocabulary(const VocabularyTile& tile, offload::DeviceSpan<VocabularyScan> scans) final;
  void sum_losses(Tokens targets, offload::DeviceSpan<const VocabularyScan> scans,
                  offload::DeviceSpan<double> loss_sum, Tensor workspace) final;
  void vocabulary_gradient(const VocabularyTile& tile,
                           offload::DeviceSpan<const VocabularyScan> scans, float gradient_scale,
                           Tensor logits_gradient) final;
  void bias_gradient(std::uint64_t rows, ConstTensor out_gradient, Gradient gradient,
                     Tensor workspace) final;
  void fill_zero(offload::DeviceSpan<float> values) final;
  void round_sums(offload::DeviceSpan<const float> sums, Tensor out) final;

 protected:
  [[nodiscard]] int threads() const { return threads_; }
  [[nodiscard]] const KernelTable<T>& table() const { return table_; }

 private:
  void sum_partials(const float* partials, std::size_t chunks, Gradient gradient);
  static const T* cast(ConstTensor tensor) { return reinterpret_cast<const T*>(tensor.address()); }
  static T* cast(Tensor tensor) { return reinterpret_cast<T*>(tensor.address()); }

  int threads_;
  const KernelTable<T>& table_;
};

extern template class RowOps<float>;
extern template class RowOps<Bf16>;
extern template class RowOps<Fp16>;

}  // namespace spillway::model::host
