// A job of `spillway train` from its request to its report, with a GPU for each rank of a grid:
// ranks that are threads of this process, on the emulated CUDA and NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "comm/threads/thread_group.hpp"
#include "runtime/engine/device/model_runtime.hpp"
#include "runtime/engine/run/run.hpp"
#include "runtime/engine/train_loop.hpp"
#include "tests/engine/training_harness.hpp"
#include "tests/support/cuda_emulation/emulation.hpp"

namespace spillway::engine::gpu_jobs_test {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::uint32_t kRanks = 4;

class Losses final : public TrainObserver {
 public:
  void planned(const TrainPlan& plan) override { device = plan.plan.device(); }
  void stepped(const StepResult& result, const StepUse&) override { all.push_back(result.loss); }
  void evaluated(std::uint64_t, const Evaluation& evaluation) override {
    all.push_back(evaluation.loss);
  }
  void saved(std::uint64_t, const std::filesystem::path&) override {}
  void noted(const std::string& text) override {
    if (on_note) on_note(text);
  }

  std::function<void(const std::string&)> on_note;
  std::vector<double> all;
  config::DeviceKind device = config::DeviceKind::host;
};

class GpuJobs : public testing::Test {
 protected:
  GpuJobs() {
    cuda_emulation::set_devices(kRanks);
    std::ofstream(data_.path() / "meta.json") << R"({"dtype": "uint16", "vocab_size": 67})";
    write_tokens(data_.path() / "train.bin", 67, 2000);
    write_tokens(data_.path() / "val.bin", 67, 100);
  }
  ~GpuJobs() override {
    cuda_emulation::set_devices(1);
    cuda_emulation::refuse_attention(nullptr);
  }

  [[nodiscard]] TrainRequest request(config::DeviceKind device) {
    TrainRequest request;
    request.model = tiny_llama();
    request.options = tiny_options();
    request.options.device = device;
    request.options.context = 8;
    request.options.rounds = 1;
    request.options.steps = 2;
    request.options.state_home = config::StateHome::host;
    request.options.pipeline.stages = 2;
    request.options.tensor.ranks = 2;
    request.data = data_.path();
    request.run = data_.path() / ("run" + std::to_string(runs_++));
    return request;
  }

  /// Returns how each rank ends, and what it has observed in `observed`.
  static std::vector<std::string> train_all(const TrainRequest& request,
                                            std::vector<Losses>& observed,
                                            const std::function<void(Rank)>& before = {}) {
    observed.assign(kRanks, {});
    std::vector<std::string> ends(kRanks);
    const std::atomic<int> interrupt{0};
    comm::ThreadGroup(kRanks).run([&](comm::Communicator& self) {
      const std::uint32_t rank = self.rank().value();
      if (before) before(self.rank());
      TrainRequest mine = request;
      mine.ranks = &self;
      try {
        static_cast<void>(train(mine, observed[rank], interrupt));
      } catch (const std::exception& error) {
        ends[rank] = error.what();
      }
    });
    return ends;
  }

  ScratchDirectory data_{"gpu-jobs"};
  int runs_ = 0;
};

/// Sums in other orders, as engine_gpu_test bounds them.
TEST_F(GpuJobs, TrainATensorGroupInAPipelineAsTheHostDoes) {
  std::vector<Losses> host;
  std::vector<Losses> gpus;
  EXPECT_THAT(train_all(request(config::DeviceKind::host), host), Each(""));
  EXPECT_THAT(train_all(request(config::DeviceKind::cuda), gpus), Each(""));
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(gpus[rank].device, config::DeviceKind::cuda);
    ASSERT_EQ(gpus[rank].all.size(), host[rank].all.size());
    ASSERT_GE(host[rank].all.size(), 2U);
    for (std::size_t i = 0; i < host[rank].all.size(); ++i) {
      EXPECT_NEAR(gpus[rank].all[i], host[rank].all[i], 1e-4 * host[rank].all[i]);
    }
  }
}

TEST_F(GpuJobs, AreRefusedWhereNcclIsTooOldBeforeAFileIsWritten) {
  const TrainRequest job = request(config::DeviceKind::cuda);
  std::vector<Losses> observed;
  const auto ends = train_all(job, observed, [](Rank) { cuda_emulation::pretend_nccl(21201); });
  EXPECT_THAT(ends, Each(HasSubstr("libnccl.so.2 is NCCL 2.12.1")));
  EXPECT_FALSE(std::filesystem::exists(job.run / "config.json"));
}

/// No model can be made once dropout is noted, which is between the run's own and its plan.
TEST_F(GpuJobs, TrainTheModelThatTheyHaveRecorded) {
  TrainRequest job = request(config::DeviceKind::cuda);
  job.options.pipeline.stages = job.options.tensor.ranks = 1;
  job.options.compute = DType::bf16;
  job.model->head_dim = 16;  // which cuDNN takes
  job.model->dropout = 0.1;
  Losses observer;
  observer.on_note = [](const std::string& text) {
    if (text.starts_with("dropout")) cuda_emulation::refuse_attention("there is a model already");
  };
  RankGroups alone;
  const auto claim = claim_run(job, alone);
  const auto run = prepare_run(job, alone, *claim, observer);
  EXPECT_THROW(static_cast<void>(make_model_runtime(run.config.model, run.config.options)), Error);
  EXPECT_THAT(run.config.device.attention, StartsWith("cuDNN"));
}

TEST_F(GpuJobs, AreRefusedWhereTwoRanksHaveOneGpu) {
  cuda_emulation::set_devices(2);
  std::vector<Losses> observed;
  const auto ends = train_all(request(config::DeviceKind::cuda), observed);
  EXPECT_THAT(ends, Each(HasSubstr("have one GPU")));
}

}  // namespace
}  // namespace spillway::engine::gpu_jobs_test
