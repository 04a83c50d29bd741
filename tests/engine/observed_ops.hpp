// ObservedOps: an adaptor around any Ops that tells a test what is computed.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "runtime/model/ops.hpp"

namespace spillway::engine {

class ObservedOps final : public model::Ops {
 public:
  explicit ObservedOps(std::unique_ptr<model::Ops> inner) : inner_(std::move(inner)) {}

  std::function<void(const model::GemmArguments&)> on_gemm = [](const auto&) {};
  std::function<void()> on_attention = [] {};
  std::function<void(const model::RowOp&)> on_row = [](const auto&) {};

  [[nodiscard]] DType compute() const override { return inner_->compute(); }
  void bind_stream(void* native) override { inner_->bind_stream(native); }
  model::GemmPlan plan_gemm(const model::GemmShape& shape) override {
    return inner_->plan_gemm(shape);
  }
  model::AttentionPlan plan_attention(const model::AttentionShape& shape) override {
    return inner_->plan_attention(shape);
  }
  [[nodiscard]] Bytes reduction_workspace(std::uint64_t rows,
                                          std::uint64_t columns) const override {
    return inner_->reduction_workspace(rows, columns);
  }
  [[nodiscard]] Bytes embedding_workspace(const model::EmbeddingShape& shape) const override {
    return inner_->embedding_workspace(shape);
  }
  [[nodiscard]] Bytes logits_at_once() const override { return inner_->logits_at_once(); }
  [[nodiscard]] std::uint64_t logits_stride(std::uint64_t columns) const override {
    return inner_->logits_stride(columns);
  }
  void gemm(model::GemmPlan plan, const model::GemmArguments& arguments) override {
    on_gemm(arguments);
    inner_->gemm(plan, arguments);
  }
  void attention_forward(model::AttentionPlan plan,
                         const model::AttentionForwardArguments& arguments) override {
    on_attention();
    inner_->attention_forward(plan, arguments);
  }
  void attention_backward(model::AttentionPlan plan,
                          const model::AttentionBackwardArguments& arguments) override {
    inner_->attention_backward(plan, arguments);
  }
  void run(const model::RowOp& op) override {
    on_row(op);
    inner_->run(op);
  }

 private:
  std::unique_ptr<model::Ops> inner_;
};

}  // namespace spillway::engine
