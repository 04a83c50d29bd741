#include "runtime/model/cuda/cuda_ops.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "runtime/base/cuda/check.hpp"
#include "runtime/model/cuda/attention/attention_cudnn.hpp"
#include "runtime/model/cuda/attention/attention_kernel.hpp"
#include "runtime/model/cuda/attention/attention_parts.hpp"
#include "runtime/model/cuda/gemm/gemm.hpp"
#include "runtime/model/cuda/kernels/bodies/embedding.hpp"
#include "runtime/model/cuda/kernels/bodies/reduction.hpp"
#include "runtime/model/cuda/kernels/kernels.hpp"

namespace spillway::model::cuda {
namespace {

std::string device_name(int device) {
  cudaDeviceProp properties{};
  const cudaError_t status = cudaGetDeviceProperties(&properties, device);
  if (status != cudaSuccess) {
    throw Error(ErrorCode::not_supported,
                fmt::format("CUDA device {} does not answer: {}; is there a GPU and its driver?",
                            device, cudaGetErrorString(status)),
                static_cast<int>(status));
  }
  check_cuda(cudaSetDevice(device), "choosing the device");
  return properties.name;
}

class DeviceOps final : public CudaOps {
 public:
  explicit DeviceOps(CudaOpsOptions options)
      : math_(options.math),
        directories_(std::move(options.library_directories)),
        device_name_(device_name(options.device)),
        cublas_(directories_),
        multiplier_(
            cublas_,
            {.math = math_, .device_name = device_name_, .choices = std::move(options.choices)}) {}

  [[nodiscard]] DType compute() const override { return math_.compute; }
  void bind_stream(void* native) override { stream_ = native; }
  [[nodiscard]] const GemmChoices& choices() const override { return multiplier_.used(); }
  [[nodiscard]] std::string libraries() const override {
    const std::string cublas = fmt::format("cuBLASLt {}", cublas_.get_version());
    return cudnn_ ? fmt::format("{}, cuDNN {}", cublas, cudnn_->version()) : cublas;
  }

  [[nodiscard]] std::string attention() const override;

  [[nodiscard]] GemmPlan plan_gemm(const GemmShape& shape) override {
    return multiplier_.plan(shape);
  }
  [[nodiscard]] AttentionPlan plan_attention(const AttentionShape& shape) override;
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

  void gemm(GemmPlan plan, const GemmArguments& a) override {
    multiplier_.run(plan, a, static_cast<cudaStream_t>(stream()));
  }
  [[nodiscard]] std::string gemm_key(const GemmShape& shape) const override {
    return multiplier_.key(shape, Alignment::sixteen);
  }
  [[nodiscard]] std::vector<GemmTiming> measure_gemm(const GemmShape& shape, const GemmArguments& a,
                                                     int count) override {
    return multiplier_.measure(shape, a, count, static_cast<cudaStream_t>(stream()));
  }
  void attention_forward(AttentionPlan plan, const AttentionForwardArguments& a) override;
  void attention_backward(AttentionPlan plan, const AttentionBackwardArguments& a) override;

  void run(const RowOp& op) override {
    std::visit([&](const auto& one) { launch(stream(), math_.compute, one); }, op);
  }

 private:
  struct Attention {
    AttentionShape shape;
    std::unique_ptr<CudnnAttention> cudnn;  ///< null: our own kernels
  };

  /// Returns the bound stream: nothing goes to the default one, whose every use waits for others.
  [[nodiscard]] void* stream() const {
    SPILLWAY_ASSERT(stream_ != nullptr);
    return stream_;
  }
  [[nodiscard]] std::unique_ptr<CudnnAttention> prepare_cudnn(const AttentionShape& shape);

  CudaMath math_;
  std::vector<std::filesystem::path> directories_;
  std::string device_name_;
  CublasLt cublas_;
  Multiplier multiplier_;
  std::optional<Cudnn> cudnn_;
  std::vector<Attention> attentions_;
  void* stream_ = nullptr;
};

std::unique_ptr<CudnnAttention> DeviceOps::prepare_cudnn(const AttentionShape& shape) {
  if (!cudnn_) cudnn_.emplace(directories_);
  try {
    return cudnn_->prepare(shape, math_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_supported) throw;
    throw Error(ErrorCode::not_supported,
                fmt::format("{}: {} heads of {} on {}; spillway.attention \"own\" attends with our "
                            "own kernels, which are far slower",
                            error.what(), shape.heads, shape.head_dim, device_name_));
  }
}

std::string DeviceOps::attention() const {
  std::string text;
  for (const Attention& each : attentions_) {
    if (!text.empty()) text += ", ";
    if (each.cudnn == nullptr) {
      text += "own";
      continue;
    }
    const AttentionEngines engines = each.cudnn->engines();
    text += fmt::format("cuDNN {} {}", engines.forward, engines.backward);
  }
  return text;
}

AttentionPlan DeviceOps::plan_attention(const AttentionShape& shape) {
  SPILLWAY_ASSERT(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0);
  const auto known = std::find_if(attentions_.begin(), attentions_.end(),
                                  [&](const Attention& a) { return a.shape == shape; });
  AttentionPlan plan;
  plan.index = static_cast<std::uint32_t>(known - attentions_.begin());
  plan.workspace = attention_workspace(shape, math_);
  if (known != attentions_.end()) return plan;
  Attention attention{.shape = shape, .cudnn = nullptr};
  if (attention_kind(shape, math_) == AttentionKind::cudnn) attention.cudnn = prepare_cudnn(shape);
  if (attention.cudnn == nullptr) check_own_attention(shape);
  attentions_.push_back(std::move(attention));
  return plan;
}

void DeviceOps::attention_forward(AttentionPlan plan, const AttentionForwardArguments& a) {
  const Attention& attention = attentions_[plan.index];
  SPILLWAY_ASSERT(keeps_strides(attention.shape, a) &&
                  a.workspace.size() >= plan.workspace.value());
  if (attention.cudnn != nullptr) {
    attention.cudnn->forward(a, stream());
  } else {
    own_attention_forward(stream(), math_.compute, attention.shape, a);
  }
}

void DeviceOps::attention_backward(AttentionPlan plan, const AttentionBackwardArguments& a) {
  const Attention& attention = attentions_[plan.index];
  SPILLWAY_ASSERT(keeps_strides(attention.shape, a) &&
                  a.workspace.size() >= plan.workspace.value());
  if (attention.cudnn != nullptr) {
    for_each_part(a, attention.shape, math_, [&](const AttentionBackwardArguments& part) {
      attention.cudnn->backward(part, stream());
    });
  } else {
    own_attention_backward(stream(), math_.compute, attention.shape, a);
  }
}

}  // namespace

std::unique_ptr<CudaOps> make_ops(CudaOpsOptions options) {
  return std::make_unique<DeviceOps>(std::move(options));
}

}  // namespace spillway::model::cuda
