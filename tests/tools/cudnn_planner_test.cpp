// cuDNN's own planner and compiler take the attention graphs of well known models, on a machine
// without a GPU: for devices that are described, with a driver that has none behind it.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "runtime/base/cuda_library_directories.hpp"
#include "runtime/base/error.hpp"
#include "runtime/model/cuda/attention/attention_cudnn.hpp"
#include "runtime/model/cuda/cuda_ops.hpp"
#include "runtime/model/transformer.hpp"
#include "tests/support/source_dir.hpp"
#include "tools/bench/model_shapes.hpp"

namespace spillway::model::cuda::cudnn_planner_test {
namespace {

using Directories = std::vector<std::filesystem::path>;

/// Where the libraries of tools/setup lie; empty if they are not installed.
Directories library_directories() {
  Directories directories = cuda_library_directories();
  std::erase_if(directories, [](const auto& directory) { return directory.empty(); });
  const bool found = std::ranges::any_of(directories, [](const auto& directory) {
    return std::filesystem::exists(directory / "libcudnn.so.9");
  });
  return found ? directories : Directories{};
}

/// The next library that asks for libcuda.so.1 gets this one.
void load_stub_driver() {
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  const auto driver = program.parent_path() / "stub_driver/libcuda.so.1";
  ASSERT_NE(::dlopen(driver.c_str(), RTLD_NOW | RTLD_GLOBAL), nullptr) << ::dlerror();
}

DescribedDevice device_named(const std::string& name) {
  std::ifstream file(test_support::source_dir() / "tests/tools/cudnn_devices" / (name + ".json"));
  return {.properties = {std::istreambuf_iterator<char>(file), {}}};
}

struct Case {
  const char* device;
  const char* model;
  BatchShape batch;
  CudaMath math{};

  /// The mathematics on that device.
  [[nodiscard]] CudaMath on_device() const {
    CudaMath result = math;
    const auto properties = nlohmann::json::parse(device_named(device).properties);
    result.generation = properties.at("deviceVer").get<std::uint32_t>() / 10;  // 900 is 9.0
    return result;
  }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.device << ' ' << c.model << ' ' << c.batch.batch << " x " << c.batch.sequence
             << (c.math.compute == DType::fp16 ? " fp16" : "")
             << (c.math.deterministic ? "" : " in any order");
}

/// The only attention that the model's layers plan.
AttentionShape attention_of(const Case& c) {
  const auto ops = make_sizing_ops(c.math);
  ModelConfig config = bench::model_named(c.model);
  config.max_context = std::max(config.max_context, c.batch.sequence);
  const Transformer transformer(config, c.batch, c.math.compute, *ops);
  EXPECT_EQ(ops->attentions().size(), 1U);
  return ops->attentions().front();
}

class CudnnPlanner : public testing::TestWithParam<Case> {};

TEST_P(CudnnPlanner, CompilesBothPassesWithinTheirWorkspace) {
  const Directories directories = library_directories();
  if (directories.empty()) GTEST_SKIP() << "cuDNN is not installed: run tools/setup cuda";
  load_stub_driver();
  const Case& c = GetParam();
  const AttentionShape shape = attention_of(c);
  const CudaMath math = c.on_device();
  ASSERT_EQ(attention_kind(shape, math), AttentionKind::cudnn);
  const Cudnn cudnn(directories, device_named(c.device));
  const AttentionEngines engines = cudnn.prepare(shape, math)->engines();
  EXPECT_LE(engines.workspace, attention_workspace(shape, math));
  const Bytes scores{score_gradient_bytes(shape, attention_backward_part(shape, math))};
  EXPECT_EQ(engines.workspace >= scores, keeps_score_gradients(math));
  EXPECT_FALSE(engines.forward.empty());
  RecordProperty("forward", engines.forward);
  RecordProperty("backward", engines.backward);
  RecordProperty("workspace", std::to_string(engines.workspace.value()));
}

constexpr CudaMath kAnyOrder{.deterministic = false};
constexpr CudaMath kHalf{.compute = DType::fp16};

INSTANTIATE_TEST_SUITE_P(
    Models, CudnnPlanner,
    testing::Values(
        Case{"h100", "gpt2", {8, 512}}, Case{"h100", "gpt2", {16, 1024}},
        Case{"h100", "gpt2", {16, 1024}, kHalf}, Case{"h100", "gpt2-xl", {4, 1024}},
        Case{"h100", "llama-2-7b", {1, 4096}}, Case{"h100", "llama-2-7b", {1, 4096}, kAnyOrder},
        Case{"h100", "llama-2-13b", {2, 4096}}, Case{"h100", "llama-3-8b", {2, 8192}},
        Case{"h100", "llama-3-8b", {2, 8192}, kAnyOrder},
        Case{"h100", "llama-3-8b", {2, 8192}, kHalf}, Case{"h100", "llama-3-8b", {1, 65536}},
        Case{"h100", "llama-3-70b", {1, 8192}}, Case{"h100", "mistral-7b", {1, 32768}},
        Case{"h100", "qwen2.5-7b", {4, 2048}}, Case{"h100", "qwen2.5-14b", {1, 16384}},
        Case{"h100", "qwen2.5-32b", {1, 4096}}, Case{"h100", "qwen3-8b", {2, 4096}},
        Case{"h100", "qwen3-14b", {1, 4096}}, Case{"h100", "qwen3-32b", {1, 4096}},
        Case{"a100", "gpt2", {16, 1024}}, Case{"a100", "llama-3-8b", {1, 8192}},
        Case{"a100", "llama-3-8b", {1, 8192}, kAnyOrder},
        Case{"a100", "qwen3-8b", {1, 4096}, kHalf}, Case{"b200", "gpt2", {16, 1024}},
        Case{"b200", "llama-3-8b", {2, 8192}}, Case{"b200", "llama-3-8b", {2, 8192}, kAnyOrder},
        Case{"b200", "qwen3-8b", {1, 4096}, kHalf}));

/// Heads of 64 and of 128 elements, of one query and of several, in bf16 and in fp16.
std::vector<Case> of_each_device() {
  std::vector<Case> cases;
  for (const char* const device :
       {"b200", "b300", "gb10", "orin", "rtx-3090", "rtx-4090", "rtx-5090", "thor"}) {
    cases.push_back({device, "gpt2", {4, 1024}});
    cases.push_back({device, "llama-3-8b", {2, 8192}, kHalf});
    cases.push_back({device, "mistral-7b", {1, 32768}});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Devices, CudnnPlanner, testing::ValuesIn(of_each_device()));

// Bits then depend on no memory that a plan leaves.
TEST(CudnnPlanner, ChoosesTheSameEnginesForPartsOfEverySize) {
  const Directories directories = library_directories();
  if (directories.empty()) GTEST_SKIP() << "cuDNN is not installed: run tools/setup cuda";
  load_stub_driver();
  const Cudnn cudnn(directories, device_named("h100"));
  const AttentionShape shape = attention_of({"h100", "llama-3-8b", {2, 8192}});
  const AttentionEngines usual = cudnn.prepare(shape, {})->engines();
  for (const Bytes most : {1_MiB, 2_GiB, 4_GiB, 8_GiB}) {
    const CudaMath math{.score_gradients = most};
    const AttentionEngines engines = cudnn.prepare(shape, math)->engines();
    EXPECT_EQ(engines.forward, usual.forward);
    EXPECT_EQ(engines.backward, usual.backward);
    EXPECT_LE(engines.workspace, attention_workspace(shape, math));
  }
}

TEST(CudnnPlanner, SaysInCudnnsWordsWhyAShapeIsRefused) {
  const Directories directories = library_directories();
  if (directories.empty()) GTEST_SKIP() << "cuDNN is not installed: run tools/setup cuda";
  load_stub_driver();
  const Cudnn cudnn(directories, device_named("h100"));
  AttentionShape shape = attention_of({"h100", "gpt2", {1, 1024}});
  shape.head_dim = 1024;  // no flash attention has heads of that size
  try {
    (void)cudnn.prepare(shape, {});
    ADD_FAILURE() << "prepared";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    EXPECT_THAT(error.what(), testing::HasSubstr("hidden_dim"));
  }
}

TEST(CudnnPlanner, RefusesADescriptionThatIsNone) {
  const Directories directories = library_directories();
  if (directories.empty()) GTEST_SKIP() << "cuDNN is not installed: run tools/setup cuda";
  for (const char* const text : {"", "{", "[1]", "{\"deviceVer\": 900}"}) {
    try {
      (void)Cudnn(directories, DescribedDevice{.properties = text});
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
    }
  }
}

}  // namespace
}  // namespace spillway::model::cuda::cudnn_planner_test
