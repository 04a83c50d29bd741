// Units of parameters through the C interface, where the device is a part of host memory.
#include <gmock/gmock.h>

#include "tests/capi/fixture.hpp"

namespace spillway::capi_test::streaming_test {
namespace {

using testing::HasSubstr;

class CStreaming : public Training {
 protected:
  /// Two units, one parameter each, of which one is on the device at a time.
  void start_streamed(std::int32_t defers_updates = 0) {
    add_all();
    for (std::uint32_t i = 0; i < 2; ++i) SPILLWAY_OK_(spillway_set_unit(trainer, i, i));
    spillway_options options = SPILLWAY_OPTIONS_INIT;
    options.device_memory = 16 << 10;
    options.defers_updates = defers_updates;
    SPILLWAY_OK_(spillway_start(trainer, &options));
  }

  void visit(std::uint32_t unit, std::int32_t pass) {
    SPILLWAY_OK_(spillway_enter(trainer, unit, pass));
    spillway_tensor there = SPILLWAY_TENSOR_INIT;
    SPILLWAY_OK_(spillway_device_values(trainer, unit, &there));
    EXPECT_EQ(there.device, SPILLWAY_CPU);
    const std::span found(static_cast<const float*>(there.data), start[unit].size());
    EXPECT_TRUE(std::ranges::equal(found, values(unit)));
    EXPECT_NE(found.data(), values(unit).data());
    if (pass == SPILLWAY_BACKWARD) {
      SPILLWAY_OK_(give(unit, std::vector<float>(start[unit].size(), 1.0F)));
    }
    SPILLWAY_OK_(spillway_leave(trainer, unit, SPILLWAY_READY_NOW, nullptr));
  }
};

TEST_F(CStreaming, UnitsAreOnTheDeviceWhileTheyAreEntered) {
  start_streamed();
  for (int step = 1; step <= 3; ++step) {
    for (const std::uint32_t unit : {0U, 1U}) visit(unit, SPILLWAY_FORWARD);
    for (const std::uint32_t unit : {1U, 0U}) visit(unit, SPILLWAY_BACKWARD);
    SPILLWAY_OK_(spillway_step(trainer, nullptr, nullptr));
  }
  // Three steps of Adam without decay, of a gradient that does not change.
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(values(1)[i], start[1][i] - 0.06F, 1e-5);
}

TEST_F(CStreaming, NoCallEndsAPassWhoseUnitIsEntered) {
  start_streamed();
  const std::string saved = (new_folder() / "saved").string();
  const std::string other = saved + "_no_more";
  SPILLWAY_OK_(spillway_save(trainer, saved.c_str()));
  std::vector<float> master(6);
  SPILLWAY_OK_(spillway_enter(trainer, 0, SPILLWAY_FORWARD));
  spillway_tensor there = SPILLWAY_TENSOR_INIT;
  SPILLWAY_OK_(spillway_device_values(trainer, 0, &there));
  double norm = 0;
  for (const spillway_status status :
       {spillway_step(trainer, nullptr, nullptr), spillway_grad_norm(trainer, 1, &norm),
        spillway_discard_gradients(trainer), spillway_values_changed(trainer, 0),
        spillway_values_written(trainer, 0, SPILLWAY_READY_NOW, nullptr),
        spillway_read_state(trainer, 0, 6, master.data(), nullptr, nullptr),
        spillway_write_state(trainer, 0, 6, master.data(), nullptr, nullptr),
        spillway_set_updates(trainer, 7), spillway_save(trainer, other.c_str()),
        spillway_load(trainer, saved.c_str())}) {
    EXPECT_EQ(status, SPILLWAY_INVALID_ARGUMENT);
    EXPECT_THAT(spillway_last_message(), HasSubstr("unit 0 was entered and not left"));
  }
  // Others could have come to where it lies.
  const std::span found(static_cast<const float*>(there.data), start[0].size());
  EXPECT_TRUE(std::ranges::equal(found, start[0]));
  SPILLWAY_OK_(spillway_leave(trainer, 0, SPILLWAY_READY_NOW, nullptr));
  for (const std::uint32_t unit : {1U, 0U}) visit(unit, SPILLWAY_BACKWARD);
  SPILLWAY_OK_(spillway_step(trainer, nullptr, nullptr));
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(values(1)[i], start[1][i] - 0.02F, 1e-6);
}

TEST_F(CStreaming, RefusesValuesThatWereWrittenBeforeTheirUnitHasItsUpdate) {
  start_streamed(/*defers_updates=*/1);
  for (const std::uint32_t unit : {1U, 0U}) visit(unit, SPILLWAY_BACKWARD);
  SPILLWAY_OK_(spillway_step(trainer, nullptr, nullptr));
  EXPECT_EQ(spillway_values_changed(trainer, 1), SPILLWAY_INVALID_ARGUMENT);
  EXPECT_THAT(spillway_last_message(), HasSubstr("\"bias\" was written while"));
  for (const std::uint32_t unit : {0U, 1U}) visit(unit, SPILLWAY_FORWARD);
  SPILLWAY_OK_(spillway_values_changed(trainer, 1));
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(values(1)[i], start[1][i] - 0.02F, 1e-6);
}

TEST_F(CStreaming, TheDeviceIsFreeBetweenReleaseAndResume) {
  add_all();
  SPILLWAY_OK_(spillway_set_unit(trainer, 0, 0));  // "bias" stays on the device
  spillway_options options = SPILLWAY_OPTIONS_INIT;
  options.device_memory = 64 << 10;
  SPILLWAY_OK_(spillway_start(trainer, &options));
  visit(0, SPILLWAY_BACKWARD);
  EXPECT_EQ(spillway_release_device(trainer, SPILLWAY_READY_NOW, nullptr),
            SPILLWAY_INVALID_ARGUMENT);
  EXPECT_THAT(spillway_last_message(), HasSubstr("gradients of this step are there already"));
  SPILLWAY_OK_(give(1, std::vector<float>(5, 1.0F)));
  SPILLWAY_OK_(spillway_step(trainer, nullptr, nullptr));
  const float* const there = values(1).data();
  SPILLWAY_OK_(spillway_release_device(trainer, SPILLWAY_READY_NOW, nullptr));
  ASSERT_NE(values(1).data(), there);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(values(1)[i], start[1][i] - 0.02F, 1e-6);
  for (const spillway_status status :
       {give(1, std::vector<float>(5, 1.0F)), spillway_step(trainer, nullptr, nullptr),
        spillway_enter(trainer, 0, SPILLWAY_FORWARD)}) {
    EXPECT_EQ(status, SPILLWAY_INVALID_ARGUMENT);
    EXPECT_THAT(spillway_last_message(), HasSubstr("call resume_device first"));
  }
  std::ranges::fill(values(1), 7.0F);
  SPILLWAY_OK_(spillway_values_changed(trainer, 1));
  SPILLWAY_OK_(spillway_resume_device(trainer));
  EXPECT_THAT(values(1), testing::Each(7.0F));
  visit(0, SPILLWAY_BACKWARD);
  SPILLWAY_OK_(give(1, std::vector<float>(5, 1.0F)));
  SPILLWAY_OK_(spillway_step(trainer, nullptr, nullptr));
  for (const float value : values(1)) EXPECT_NEAR(value, 7 - 0.02F, 1e-6);
}

TEST_F(CStreaming, SaysWhatIsOutOfTurn) {
  start_streamed();
  EXPECT_EQ(spillway_set_unit(trainer, 0, 1), SPILLWAY_INVALID_ARGUMENT);
  EXPECT_THAT(spillway_last_message(), HasSubstr("has started"));
  EXPECT_EQ(spillway_enter(trainer, 0, 7), SPILLWAY_INVALID_ARGUMENT);
  EXPECT_THAT(spillway_last_message(), HasSubstr("SPILLWAY_BACKWARD"));
  EXPECT_EQ(spillway_leave(trainer, 0, SPILLWAY_READY_NOW, nullptr), SPILLWAY_INVALID_ARGUMENT);
  EXPECT_THAT(spillway_last_message(), HasSubstr("was not entered"));
  EXPECT_EQ(spillway_leave(trainer, 0, SPILLWAY_READY_STREAM, nullptr), SPILLWAY_NOT_SUPPORTED);
  spillway_tensor there = SPILLWAY_TENSOR_INIT;
  EXPECT_EQ(spillway_device_values(trainer, 0, &there), SPILLWAY_INVALID_ARGUMENT);
  EXPECT_THAT(spillway_last_message(), HasSubstr("enter its unit first"));
  visit(0, SPILLWAY_FORWARD);
}

}  // namespace
}  // namespace spillway::capi_test::streaming_test
