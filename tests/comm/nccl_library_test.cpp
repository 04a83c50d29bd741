// Loading NCCL, in builds with CUDA: found where it lies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "comm/nccl/nccl.hpp"
#include "runtime/base/cuda_library_directories.hpp"

namespace spillway::comm::detail::nccl_library_test {
namespace {

TEST(Nccl, HasEveryFunctionThatWeCall) {
  for (const auto& directory : cuda_library_directories()) {
    if (directory.empty() || !std::filesystem::exists(directory / kNcclName)) continue;
    const std::vector directories{directory};
    const Nccl library(directories);
    EXPECT_GE(library.version(), kOldestNccl);
    EXPECT_THAT(library.error_string(ncclRemoteError), testing::HasSubstr("remote process"));
    return;
  }
  GTEST_SKIP() << kNcclName << " is not installed: run tools/setup cuda";
}

}  // namespace
}  // namespace spillway::comm::detail::nccl_library_test
