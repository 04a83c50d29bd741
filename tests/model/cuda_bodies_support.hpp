// Kernel bodies run on the CPU: a Runner that calls them one after the other, forwards or
// backwards, and Ops on it, which tests compare with the host's.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/team.hpp"
#include "runtime/model/cuda/kernels/bodies/activation.hpp"
#include "runtime/model/cuda/kernels/bodies/cross_entropy.hpp"
#include "runtime/model/cuda/kernels/bodies/embedding.hpp"
#include "runtime/model/cuda/kernels/bodies/norm.hpp"
#include "runtime/model/cuda/kernels/bodies/rope.hpp"
#include "runtime/model/cuda/kernels/bodies/vocabulary.hpp"
#include "tests/model/ops_support.hpp"

namespace spillway::model {

/// SerialTeam with its lanes in the opposite order: a body that needs a barrier that it does not
/// have gives other bits.
template <unsigned Lanes>
struct BackwardTeam : SerialTeam<Lanes> {
  template <class Body>
  void each(Body body) const {
    for (unsigned lane = Lanes; lane-- > 0;) body(lane);
  }
};

enum class Order { forward, backward };

/// Items and teams in one order or the other: on a device there is none. Shared memory holds NaNs
/// at first, and ends where the caller said.
class SerialRunner {
 public:
  explicit SerialRunner(Order order) : order_(order) {}

  template <class Body>
  void items(const Body& body, std::uint64_t count) {
    static_assert(std::is_trivially_copyable_v<Body> && sizeof(Body) <= 4096);
    for (std::uint64_t i = 0; i < count; ++i) body(ordered(i, count));
    ++launches;
  }

  template <unsigned Lanes, class Body>
  void teams(const Body& body, std::uint64_t count, std::size_t shared_bytes) {
    namespace bodies = cuda::bodies;
    static_assert(std::is_trivially_copyable_v<Body> && sizeof(Body) <= 4096);
    const std::size_t in_block = Lanes == kWarpLanes ? bodies::kWarpsInBlock : 1;
    EXPECT_LE(in_block * shared_bytes, bodies::kSharedBytes);
    for (std::uint64_t i = 0; i < count; ++i) {
      const TestMemory shared(shared_bytes);
      if (order_ == Order::forward) {
        body(SerialTeam<Lanes>{}, i, shared.data());
      } else {
        body(BackwardTeam<Lanes>{}, ordered(i, count), shared.data());
      }
    }
    ++launches;
  }

  void zero(float* values, std::uint64_t count) { std::fill(values, values + count, 0.0F); }

  int launches = 0;

 private:
  [[nodiscard]] std::uint64_t ordered(std::uint64_t i, std::uint64_t count) const {
    return order_ == Order::forward ? i : count - 1 - i;
  }
  Order order_;
};

/// The bodies as Ops; matrix products and attention are the host's.
class SerialOps final : public Ops {
 public:
  SerialOps(DType compute, Order order)
      : compute_(compute), runner_(order), host_(host::make_ops({.compute = compute})) {}

  [[nodiscard]] DType compute() const override { return compute_; }
  GemmPlan plan_gemm(const GemmShape& shape) override { return host_->plan_gemm(shape); }
  AttentionPlan plan_attention(const AttentionShape& shape) override {
    return host_->plan_attention(shape);
  }
  [[nodiscard]] Bytes reduction_workspace(std::uint64_t rows,
                                          std::uint64_t columns) const override {
    return Bytes{cuda::bodies::reduction_bytes(rows, columns)};
  }
  [[nodiscard]] Bytes embedding_workspace(const EmbeddingShape& shape) const override {
    return Bytes{cuda::bodies::embedding_bytes(shape)};
  }
  void gemm(GemmPlan plan, const GemmArguments& a) override { host_->gemm(plan, a); }
  void attention_forward(AttentionPlan plan, const AttentionForwardArguments& a) override {
    host_->attention_forward(plan, a);
  }
  void attention_backward(AttentionPlan plan, const AttentionBackwardArguments& a) override {
    host_->attention_backward(plan, a);
  }
  void run(const RowOp& op) override {
    std::visit([&](const auto& one) { cuda::bodies::run(runner_, compute_, one); }, op);
  }

 private:
  DType compute_;
  SerialRunner runner_;
  std::unique_ptr<Ops> host_;
};

/// What a run of an operation left behind.
struct Result {
  std::string name;
  TestMemory memory;
  DType dtype;
};
using Results = std::vector<Result>;

/// Every dtype; each operation runs on the host Ops and twice on the bodies.
class CudaBodies : public testing::TestWithParam<DType> {
 protected:
  CudaBodies() : dtype_(GetParam()) { RecordProperty("seed", std::to_string(Random::seed())); }

  Operand random(std::size_t count, float scale = 1, float offset = 0) {
    std::vector<float> values(count);
    for (float& value : values) value = offset + random_.normal(scale);
    return {values, dtype_};
  }
  [[nodiscard]] TestMemory elements(std::size_t count) const {
    return TestMemory(count * size_of(dtype_));
  }
  static TestMemory floats(std::size_t count) { return TestMemory(count * sizeof(float)); }
  static TestMemory copy(const TestMemory& memory) {
    return TestMemory(std::span<const std::byte>(memory.data(), memory.size()));
  }
  [[nodiscard]] Tensor from(const TestMemory& memory, std::size_t first) const {
    const std::size_t bytes = first * size_of(dtype_);
    return memory.device().subspan(bytes, memory.size() - bytes);
  }

  /// The spacing of stored values of size 1 and less than 2: two roundings of neighbours are no
  /// further apart.
  static double spacing(DType dtype) {
    if (dtype == DType::bf16) return 0x1p-7;
    return dtype == DType::fp16 ? 0x1p-10 : 0;
  }

  /// |own - host| <= one unit in the last place stored + 1e-5 of the largest finite value: fp32
  /// sums of some thousand terms in another order. What is not finite is so on both sides.
  static void expect_near(const Result& own, const Result& host) {
    const std::vector<float> actual = decode(own.memory, own.dtype);
    const std::vector<float> expected = decode(host.memory, host.dtype);
    ASSERT_EQ(actual.size(), expected.size()) << own.name;
    double largest = own.dtype == DType::fp16 ? 0x1p-9 : 0;  // fp16 subnormals: 2^-25 and below
    for (const float value : expected) {
      if (std::isfinite(value)) largest = std::max(largest, std::fabs(static_cast<double>(value)));
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(std::isfinite(actual[i]), std::isfinite(expected[i])) << own.name << " at " << i;
      if (!std::isfinite(expected[i])) continue;
      const auto value = static_cast<double>(expected[i]);
      ASSERT_NEAR(static_cast<double>(actual[i]), value,
                  spacing(own.dtype) * std::fabs(value) + 1e-5 * largest)
          << own.name << " at " << i << " of " << expected.size() << ", seed " << Random::seed();
    }
  }

  /// Runs `run` on the host and the bodies and compares everything it returns; the bodies also
  /// with themselves in the opposite order, bit for bit.
  void compare(const std::function<Results(Ops&)>& run) {
    const auto host = host::make_ops({.compute = dtype_});
    SerialOps own(dtype_, Order::forward);
    SerialOps backward(dtype_, Order::backward);
    const Results expected = run(*host);
    const Results actual = run(own);
    const Results again = run(backward);
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      expect_near(actual[i], expected[i]);
      ASSERT_EQ(actual[i].memory.size(), again[i].memory.size());
      EXPECT_EQ(
          std::memcmp(actual[i].memory.data(), again[i].memory.data(), actual[i].memory.size()), 0)
          << actual[i].name << " depends on the order of threads";
    }
  }

  DType dtype_;
  Random random_;
};

inline std::string name_of_dtype(const testing::TestParamInfo<DType>& info) {
  return std::string(name_of(info.param));
}
inline auto all_dtypes() { return testing::Values(DType::fp32, DType::bf16, DType::fp16); }

}  // namespace spillway::model
