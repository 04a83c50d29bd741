// Plans without a GPU.
#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/model/cuda/cuda_ops.hpp"
#include "runtime/model/cuda/kernels/bodies/embedding.hpp"
#include "runtime/model/cuda/kernels/bodies/reduction.hpp"

namespace spillway::model::cuda {
namespace {

class PlanningOps final : public SizingOps {
 public:
  explicit PlanningOps(const CudaMath& math) : math_(math) {}

  [[nodiscard]] DType compute() const override { return math_.compute; }
  [[nodiscard]] const std::vector<GemmShape>& gemms() const override { return gemms_; }
  [[nodiscard]] const std::vector<AttentionShape>& attentions() const override {
    return attentions_;
  }
  [[nodiscard]] GemmPlan plan_gemm(const GemmShape& shape) override {
    if (std::ranges::find(gemms_, shape) == gemms_.end()) gemms_.push_back(shape);
    GemmPlan plan;
    plan.workspace = gemm_workspace();
    return plan;
  }
  [[nodiscard]] AttentionPlan plan_attention(const AttentionShape& shape) override {
    if (std::ranges::find(attentions_, shape) == attentions_.end()) attentions_.push_back(shape);
    AttentionPlan plan;
    plan.workspace = attention_workspace(shape, math_);
    return plan;
  }
  [[nodiscard]] Bytes logits_at_once() const override { return kLogitsAtOnce; }
  [[nodiscard]] std::uint64_t logits_stride(std::uint64_t columns) const override {
    return round_up(columns, kRowElements);
  }
  [[nodiscard]] Bytes reduction_workspace(std::uint64_t rows,
                                          std::uint64_t columns) const override {
    return Bytes{bodies::reduction_bytes(rows, columns)};
  }
  [[nodiscard]] Bytes embedding_workspace(const EmbeddingShape& shape) const override {
    return Bytes{bodies::embedding_bytes(shape)};
  }

  void gemm(GemmPlan, const GemmArguments&) override { refuse(); }
  void attention_forward(AttentionPlan, const AttentionForwardArguments&) override { refuse(); }
  void attention_backward(AttentionPlan, const AttentionBackwardArguments&) override { refuse(); }
  void run(const RowOp&) override { refuse(); }

 private:
  [[noreturn]] static void refuse() {
    throw Error(ErrorCode::not_supported,
                "this plan for a GPU was made without one: it only sizes");
  }

  CudaMath math_;
  std::vector<GemmShape> gemms_;
  std::vector<AttentionShape> attentions_;
};

}  // namespace

std::unique_ptr<SizingOps> make_sizing_ops(const CudaMath& math) {
  return std::make_unique<PlanningOps>(math);
}

}  // namespace spillway::model::cuda
