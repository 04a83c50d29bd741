// In place of runtime/model/cuda/attention/attention_cudnn.cpp: what cuDNN's attention computes, by
// its definition in fp32.
#include <cmath>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/model/cuda/attention/attention_cudnn.hpp"
#include "tests/support/cuda_emulation/library_call.hpp"

namespace spillway::model::cuda {
namespace {

const char* refusal = nullptr;  // of refuse_attention

using cuda_emulation::expect_operand;

/// One head of one window: rows of `dim` elements, `stride` from one to the next.
struct Rows {
  cudaDataType_t type;
  std::byte* first;
  std::uint64_t stride;
  std::uint32_t dim;

  [[nodiscard]] float get(std::uint64_t row, std::uint64_t column) const {
    return cuda_emulation::load(type, first, row * stride + column);
  }
  void set(std::uint64_t row, std::uint64_t column, float value) const {
    cuda_emulation::store(type, first, row * stride + column, value);
  }
  [[nodiscard]] float dot(std::uint64_t row, const Rows& other, std::uint64_t other_row) const {
    float sum = 0;
    for (std::uint64_t i = 0; i < dim; ++i) sum += get(row, i) * other.get(other_row, i);
    return sum;
  }
};

class Attention final : public CudnnAttention {
 public:
  Attention(const AttentionShape& shape, const CudaMath& math)
      : shape_(shape),
        part_(attention_backward_part(shape, math)),
        type_(math.compute == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F),
        workspace_((attention_workspace(shape, math) - Bytes{kWorkspaceAlignment}).value()) {}

  [[nodiscard]] AttentionEngines engines() const override {
    return {.forward = "emulated", .backward = "emulated", .workspace = Bytes{workspace_}};
  }

  void forward(const AttentionForwardArguments& a, void* stream) override {
    enqueue(a.workspace, stream, [this, a] {
      expect(a.q, shape_.batch, shape_.heads, "q");
      expect(a.k, shape_.batch, shape_.kv_heads, "k");
      expect(a.v, shape_.batch, shape_.kv_heads, "v");
      expect(a.out, shape_.batch, shape_.heads, "attention's result");
      for_each_head([&](std::uint32_t batch, std::uint32_t head) {
        forward_head(rows(a.q, batch, head), rows(a.k, batch, shared(head)),
                     rows(a.v, batch, shared(head)), rows(a.out, batch, head),
                     a.log_sum.address() + first_row(batch, head));
      });
    });
  }

  void backward(const AttentionBackwardArguments& a, void* stream) override {
    enqueue(a.workspace, stream, [this, a] {
      const std::uint32_t heads = part_.kv_heads * group();
      expect(a.q, part_.batch, heads, "q");
      expect(a.k, part_.batch, part_.kv_heads, "k");
      expect(a.v, part_.batch, part_.kv_heads, "v");
      expect(a.out, part_.batch, heads, "attention's result");
      expect(a.out_gradient, part_.batch, heads, "the gradient of attention's result");
      expect(a.q_gradient, part_.batch, heads, "the gradient of q");
      expect(a.k_gradient, part_.batch, part_.kv_heads, "the gradient of k");
      expect(a.v_gradient, part_.batch, part_.kv_heads, "the gradient of v");
      for (std::uint32_t batch = 0; batch < part_.batch; ++batch) {
        for (std::uint32_t kv = 0; kv < part_.kv_heads; ++kv) backward_group(a, batch, kv);
      }
    });
  }

 private:
  [[nodiscard]] std::uint32_t group() const { return shape_.heads / shape_.kv_heads; }
  [[nodiscard]] std::uint32_t shared(std::uint32_t head) const { return head / group(); }
  [[nodiscard]] std::uint64_t first_row(std::uint32_t batch, std::uint32_t head) const {
    return (std::uint64_t{batch} * shape_.heads + head) * shape_.sequence;
  }
  [[nodiscard]] float scale() const {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape_.head_dim)));
  }

  template <class View>
  [[nodiscard]] Rows rows(const HeadRows<View>& all, std::uint32_t batch,
                          std::uint32_t head) const {
    const std::uint64_t element =
        std::uint64_t{batch} * shape_.sequence * all.stride + std::uint64_t{head} * shape_.head_dim;
    auto* const first = const_cast<std::byte*>(all.data.address());
    return {type_, first + element * cuda_emulation::element_bytes(type_), all.stride,
            shape_.head_dim};
  }
  template <class View>
  void expect(const HeadRows<View>& all, std::uint32_t batch, std::uint32_t heads,
              const char* what) const {
    const std::uint64_t last = std::uint64_t{batch} * shape_.sequence - 1;
    const std::uint64_t count = last * all.stride + std::uint64_t{heads} * shape_.head_dim;
    expect_operand(what, all.data.address(), count * cuda_emulation::element_bytes(type_), 16);
  }
  template <class Body>
  void for_each_head(Body body) const {
    for (std::uint32_t batch = 0; batch < shape_.batch; ++batch) {
      for (std::uint32_t head = 0; head < shape_.heads; ++head) body(batch, head);
    }
  }
  void enqueue(Tensor workspace, void* stream, std::function<void()> work) const {
    const auto first = reinterpret_cast<std::uintptr_t>(workspace.address());
    std::byte* const aligned = workspace.address() + (round_up(first, kWorkspaceAlignment) - first);
    expect_operand("attention's workspace", aligned, workspace_, kWorkspaceAlignment);
    cuda_emulation::enqueue_call(static_cast<cudaStream_t>(stream), {aligned, workspace_},
                                 std::move(work));
  }

  void forward_head(const Rows& q, const Rows& k, const Rows& v, const Rows& out,
                    float* log_sum) const {
    std::vector<float> weights(shape_.sequence);
    for (std::uint64_t i = 0; i < shape_.sequence; ++i) {
      float largest = -INFINITY;
      for (std::uint64_t j = 0; j <= i; ++j) {
        weights[j] = scale() * q.dot(i, k, j);
        largest = std::fmax(largest, weights[j]);
      }
      float sum = 0;
      for (std::uint64_t j = 0; j <= i; ++j) sum += weights[j] = std::exp(weights[j] - largest);
      log_sum[i] = largest + std::log(sum);
      for (std::uint64_t column = 0; column < shape_.head_dim; ++column) {
        float value = 0;
        for (std::uint64_t j = 0; j <= i; ++j) value += weights[j] * v.get(j, column);
        out.set(i, column, value / sum);
      }
    }
  }

  /// The query heads that share one head of keys and values.
  void backward_group(const AttentionBackwardArguments& a, std::uint32_t batch,
                      std::uint32_t kv) const {
    const std::uint32_t dim = shape_.head_dim;
    const std::size_t count = std::size_t{shape_.sequence} * dim;
    const Rows k = rows(a.k, batch, kv);
    const Rows v = rows(a.v, batch, kv);
    std::vector<float> k_sums(count);
    std::vector<float> v_sums(count);
    for (std::uint32_t head = kv * group(); head < (kv + 1) * group(); ++head) {
      const Rows q = rows(a.q, batch, head);
      const Rows out = rows(a.out, batch, head);
      const Rows out_gradient = rows(a.out_gradient, batch, head);
      const Rows q_gradient = rows(a.q_gradient, batch, head);
      const float* const log_sum = a.log_sum.address() + first_row(batch, head);
      for (std::uint64_t i = 0; i < shape_.sequence; ++i) {
        const float mean = out_gradient.dot(i, out, i);
        std::vector<float> q_sum(dim);
        for (std::uint64_t j = 0; j <= i; ++j) {
          const float weight = std::exp(scale() * q.dot(i, k, j) - log_sum[i]);
          const float slope = scale() * weight * (out_gradient.dot(i, v, j) - mean);
          for (std::uint64_t c = 0; c < dim; ++c) {
            q_sum[c] += slope * k.get(j, c);
            k_sums[j * dim + c] += slope * q.get(i, c);
            v_sums[j * dim + c] += weight * out_gradient.get(i, c);
          }
        }
        for (std::uint64_t c = 0; c < dim; ++c) q_gradient.set(i, c, q_sum[c]);
      }
    }
    const Rows k_gradient = rows(a.k_gradient, batch, kv);
    const Rows v_gradient = rows(a.v_gradient, batch, kv);
    for (std::uint64_t i = 0; i < count; ++i) {
      k_gradient.set(i / dim, i % dim, k_sums[i]);
      v_gradient.set(i / dim, i % dim, v_sums[i]);
    }
  }

  AttentionShape shape_;
  AttentionPart part_;
  cudaDataType_t type_;
  std::size_t workspace_;
};

}  // namespace

struct Cudnn::State {};

Cudnn::Cudnn(std::span<const std::filesystem::path> /*directories*/)
    : state_(std::make_unique<State>()) {}
Cudnn::~Cudnn() = default;

std::size_t Cudnn::version() const { return 91900; }

std::unique_ptr<CudnnAttention> Cudnn::prepare(const AttentionShape& shape,
                                               const CudaMath& math) const {
  if (refusal != nullptr) throw Error(ErrorCode::not_supported, refusal);
  return std::make_unique<Attention>(shape, math);
}

}  // namespace spillway::model::cuda

namespace cuda_emulation {

void refuse_attention(const char* reason) { spillway::model::cuda::refusal = reason; }

}  // namespace cuda_emulation
