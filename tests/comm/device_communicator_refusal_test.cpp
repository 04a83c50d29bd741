// DeviceCommunicator where it cannot be had, in every build.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/device_communicator.hpp"
#include "runtime/base/error.hpp"

namespace spillway::comm::device_communicator_refusal_test {
namespace {

TEST(DeviceCommunicator, SaysWhatIsMissingAndHowToGetIt) {
  const auto host = make_communicator("single");
  try {
    const DeviceCommunicator self(*host, {.library_directories = {"/no/such/place"}});
    FAIL() << "made without NCCL";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    EXPECT_THAT(error.what(), testing::HasSubstr("tools/setup cuda"));
    EXPECT_THAT(error.what(), testing::AnyOf(testing::HasSubstr("/no/such/place/libnccl.so.2"),
                                             testing::HasSubstr("this build has no")));
  }
  // The other ranks are told, by the communicator that they share.
  EXPECT_THROW(host->barrier().wait(), Error);
}

}  // namespace
}  // namespace spillway::comm::device_communicator_refusal_test
