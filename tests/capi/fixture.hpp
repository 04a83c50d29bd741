// What tests of the C interface share: checked calls, tensors of vectors, a trainer that ends with
// the test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/capi/spillway.h"

namespace spillway::capi_test {

#define SPILLWAY_OK_(call) ASSERT_EQ((call), SPILLWAY_OK) << spillway_last_message()

/// Describes `data`, which it does not own, in the shape `shape` of the caller's.
template <class Element>
spillway_tensor tensor_of(std::span<Element> data, std::span<const std::int64_t> shape,
                          std::int32_t dtype = SPILLWAY_FP32) {
  spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
  tensor.dtype = dtype;
  tensor.data = data.data();
  tensor.shape = shape.data();
  tensor.dimensions = static_cast<std::int32_t>(shape.size());
  return tensor;
}

/// Makes an empty folder for the test that runs.
inline std::filesystem::path new_folder() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const auto folder =
      std::filesystem::path(testing::TempDir()) / (std::string("spillway_capi_") + test->name());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

/// Has two fp32 parameters: "weight" [2, 3] in group 0 and "bias" [5] in group 1.
class Training : public testing::Test {
 protected:
  void SetUp() override { SPILLWAY_OK_(spillway_create(&trainer)); }
  void TearDown() override { EXPECT_EQ(spillway_destroy(trainer), SPILLWAY_OK); }

  void add_all() {
    spillway_group group = SPILLWAY_GROUP_INIT;
    group.lr = 0.01;
    group.weight_decay = 0.1;
    SPILLWAY_OK_(spillway_add_group(trainer, &group, nullptr));
    group.lr = 0.02;
    group.weight_decay = 0;
    SPILLWAY_OK_(spillway_add_group(trainer, &group, nullptr));
    for (std::uint32_t i = 0; i < 2; ++i) {
      const spillway_tensor tensor = tensor_of(std::span(start[i]), shapes[i]);
      std::uint32_t index = 99;
      SPILLWAY_OK_(spillway_add_parameter(trainer, names[i].c_str(), i, &tensor, &index));
      ASSERT_EQ(index, i);
    }
  }

  void start_all(const spillway_options* options = nullptr) {
    add_all();
    SPILLWAY_OK_(spillway_start(trainer, options));
  }

  /// Hands over a gradient for one parameter.
  spillway_status give(std::uint32_t parameter, std::vector<float> gradient) {
    const spillway_tensor tensor = tensor_of(std::span(gradient), shapes[parameter]);
    return spillway_gradient_ready(trainer, parameter, &tensor, SPILLWAY_READY_NOW, nullptr);
  }

  std::span<float> values(std::uint32_t parameter) {
    spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
    EXPECT_EQ(spillway_values(trainer, parameter, &tensor), SPILLWAY_OK) << spillway_last_message();
    return {static_cast<float*>(tensor.data), start[parameter].size()};
  }

  spillway_trainer* trainer = nullptr;
  std::vector<std::string> names{"weight", "bias"};
  std::vector<std::vector<std::int64_t>> shapes{{2, 3}, {5}};
  std::vector<std::vector<float>> start{{1, -2, 3, -4, 5, -6}, {0.5F, 0, -0.5F, 2, 4}};
};

}  // namespace spillway::capi_test
