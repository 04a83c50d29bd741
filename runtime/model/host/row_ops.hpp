// The row-wise half of the host Ops: norm, activation, embedding, loss and sums on vector kernels.
// `HostOps` adds gemms and attention.
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

/// Number of elements worth a thread's while: waking one costs as much as visiting some thousand.
inline constexpr std::size_t kUnit = 8192;
/// Number of items of `elements` each that make a unit.
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

/// `T` is float, Bf16 or Fp16. `table` must outlive this.
template <class T>
class RowOps : public Ops {
 public:
  RowOps(int threads, const KernelTable<T>& table) : threads_(threads), table_(table) {}

  [[nodiscard]] DType compute() const final { return kDtype<T>; }
  [[nodiscard]] Bytes reduction_workspace(std::uint64_t rows, std::uint64_t columns) const final;

  /// Returns none: each thread owns columns of the table.
  [[nodiscard]] Bytes embedding_workspace(const EmbeddingShape& /*shape*/) const final {
    return Bytes{};
  }

  void run(const RowOp& op) final {
    std::visit([&](const auto& one) { run_one(one); }, op);
  }

 protected:
  [[nodiscard]] int threads() const { return threads_; }
  [[nodiscard]] const KernelTable<T>& table() const { return table_; }

 private:
  void run_one(const NormForwardOp& op);
  void run_one(const NormBackwardOp& op);
  void run_one(const RopeArguments& a);
  void run_one(const ActivationForwardOp& op);
  void run_one(const ActivationBackwardOp& op);
  void run_one(const EmbeddingForwardOp& op);
  void run_one(const EmbeddingBackwardOp& op);
  void run_one(const CrossEntropyArguments& a);
  void run_one(const ScanVocabularyOp& op);
  void run_one(const MergeScansOp& op);
  void run_one(const SumLossesOp& op);
  void run_one(const VocabularyGradientOp& op);
  void run_one(const BiasGradientOp& op);
  void run_one(const FillZeroOp& op);
  void run_one(const RoundSumsOp& op);
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
