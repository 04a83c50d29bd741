// How many operations the passes of well known models put on a stream: few enough that the control
// thread never waits for room. The shapes are the real ones, which is why nothing of it runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "offload/cuda/cuda_backend.hpp"
#include "offload/memory.hpp"
#include "runtime/engine/step/executor.hpp"
#include "runtime/model/cuda/cuda_ops.hpp"
#include "runtime/model/transformer.hpp"
#include "tests/support/cuda_emulation/emulation.hpp"
#include "tools/bench/model_shapes.hpp"

namespace spillway::model::pending_launches_test {
namespace {

struct Case {
  const char* model;
  BatchShape batch;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.model << ' ' << c.batch.batch << " x " << c.batch.sequence;
}

/// What one call of NVIDIA's libraries, which the emulation counts as one operation, may put on a
/// stream: a product whose sums are cut is two kernels, a part of attention's backward pass three.
constexpr std::uint64_t kKernelsOfACall = 3;

class PendingLaunches : public testing::TestWithParam<Case> {
 protected:
  using Memory = offload::DeviceSpan<std::byte>;

  PendingLaunches() {
    cuda_emulation::set_order(cuda_emulation::late);
    ops_->bind_stream(stream_->native());
    offload::allocate(constants_, *backend_, transformer_.constant_bytes());
    transformer_.bind_constants(constants_.device().as<const float>());
  }
  ~PendingLaunches() override { cuda_emulation::discard_pending(); }

  [[nodiscard]] Memory memory(Bytes bytes) {
    offload::allocate(memory_.emplace_back(), *backend_, bytes);
    return memory_.back().device();
  }
  [[nodiscard]] Bytes elements(std::uint32_t block, std::size_t bytes) const {
    return Bytes{transformer_.layout().blocks[block].padded_parameters.value() * bytes};
  }
  /// How many operations of `block` are pending; none is afterwards, and its memory is free.
  std::uint64_t counted() {
    const std::uint64_t count = cuda_emulation::discard_pending();
    memory_.clear();
    return count;
  }

  std::uint64_t layer_forward() {
    transformer_.forward({.block = 1,
                          .parameters = memory(elements(1, 2)),
                          .tokens = {},
                          .input = boundary(),
                          .output = boundary(),
                          .saved = memory(transformer_.saved_bytes(1)),
                          .workspace = memory(transformer_.workspace_bytes())});
    return counted();
  }
  std::uint64_t layer_backward() {
    transformer_.backward({.block = 1,
                           .parameters = memory(elements(1, 2)),
                           .tokens = {},
                           .input = boundary(),
                           .saved = memory(transformer_.saved_bytes(1)),
                           .boundary_gradient = boundary(),
                           .gradients = memory(elements(1, 4)).as<float>(),
                           .first = true,
                           .workspace = memory(transformer_.workspace_bytes())});
    return counted();
  }
  std::uint64_t embedding_backward() {
    transformer_.backward({.block = 0,
                           .parameters = {},
                           .tokens = tokens(),
                           .input = {},
                           .saved = {},
                           .boundary_gradient = boundary(),
                           .gradients = memory(elements(0, 4)).as<float>(),
                           .first = true,
                           .workspace = memory(transformer_.workspace_bytes())});
    return counted();
  }
  std::uint64_t loss() {
    const auto head = static_cast<std::uint32_t>(transformer_.layout().blocks.size() - 1);
    const bool tied = config_.tied_head;
    transformer_.loss({.block = head,
                       .parameters = memory(elements(head, 2)),
                       .tied_parameters = tied ? memory(elements(0, 2)) : Memory(),
                       .targets = tokens(),
                       .input = boundary(),
                       .loss_sum = memory(Bytes{sizeof(double)}).as<double>(),
                       .gradient_scale = 1,
                       .boundary_gradient = boundary(),
                       .gradients = memory(elements(head, 4)).as<float>(),
                       .tied_gradients = (tied ? memory(elements(0, 4)) : Memory()).as<float>(),
                       .first = true,
                       .workspace = memory(transformer_.workspace_bytes())});
    return counted();
  }

 private:
  [[nodiscard]] Memory boundary() { return memory(transformer_.boundary_bytes()); }
  [[nodiscard]] offload::DeviceSpan<const std::int32_t> tokens() {
    const BatchShape& batch = GetParam().batch;
    return memory(Bytes{std::uint64_t{batch.batch} * batch.sequence * 4}).as<const std::int32_t>();
  }

  static ModelConfig config_of(const Case& c) {
    ModelConfig config = bench::model_named(c.model);
    config.max_context = std::max(config.max_context, c.batch.sequence);
    return config;
  }

  ModelConfig config_ = config_of(GetParam());
  std::unique_ptr<offload::DeviceBackend> backend_ =
      offload::make_cuda_backend({.device_capacity = 16_GiB, .pinned_capacity = 1_GiB});
  std::unique_ptr<offload::Stream> stream_ = backend_->make_stream("compute");
  std::unique_ptr<cuda::CudaOps> ops_ = cuda::make_ops({.math = {.compute = DType::bf16}});
  Transformer transformer_{config_, GetParam().batch, DType::bf16, *ops_};
  offload::DeviceMemory constants_;
  std::vector<offload::DeviceMemory> memory_;
};

TEST_P(PendingLaunches, OfThePassesInFlightLeaveTheStreamRoom) {
  const std::uint64_t most =
      std::max({layer_forward(), layer_backward(), embedding_backward(), loss()});
  RecordProperty("operations of a pass", std::to_string(most));
  EXPECT_GT(most, 4U);
  EXPECT_LT(engine::kPassesInFlight * kKernelsOfACall * most, cuda_emulation::kMostPending);
}

INSTANTIATE_TEST_SUITE_P(Models, PendingLaunches,
                         testing::Values(Case{"gpt2-xl", {4, 1024}}, Case{"llama-3-8b", {2, 8192}},
                                         Case{"llama-3-8b", {1, 16384}},
                                         Case{"llama-3-70b", {1, 8192}},
                                         Case{"qwen2.5-7b", {4, 2048}},
                                         Case{"qwen3-8b", {2, 4096}}));

}  // namespace
}  // namespace spillway::model::pending_launches_test
