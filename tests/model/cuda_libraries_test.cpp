// Loading cuBLASLt and cuDNN, in builds with CUDA: found where they lie, named where they do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "offload/cuda/cuda_device.hpp"
#include "runtime/base/cuda_library_directories.hpp"
#include "runtime/base/error.hpp"
#include "runtime/model/cuda/attention/attention_cudnn.hpp"
#include "runtime/model/cuda/cuda_ops.hpp"
#include "runtime/model/cuda/gemm/cublaslt.hpp"

namespace spillway::model::cuda::cuda_libraries_test {
namespace {

using Directories = std::vector<std::filesystem::path>;

/// Where `file` lies, as a list of one; empty if it is installed nowhere that we look.
Directories holding(const char* file) {
  for (const auto& directory : cuda_library_directories()) {
    if (!directory.empty() && std::filesystem::exists(directory / file)) return {directory};
  }
  return {};
}

TEST(CublasLt, HasEveryFunctionThatWeCall) {
  const Directories directories = holding(kCublasLtName);
  if (directories.empty()) {
    GTEST_SKIP() << kCublasLtName << " is not installed: run tools/setup cuda";
  }
  const CublasLt library(directories);
  EXPECT_GE(library.get_version(), 130000U);
  EXPECT_STREQ(library.status_name(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
}

template <class Load>
void expect_missing(Load load, const char* file, const char* package) {
  try {
    load(Directories{"/no/such/place"});
    ADD_FAILURE() << "loaded " << file;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    for (const char* part : {file, "/no/such/place", package}) {
      EXPECT_THAT(error.what(), testing::HasSubstr(part));
    }
  }
}

TEST(CublasLt, NamesThePlacesAndTheRemedyWhereItIsMissing) {
  expect_missing([](const Directories& places) { (void)CublasLt(places); }, kCublasLtName,
                 "nvidia-cublas");
}

TEST(Cudnn, NamesThePlacesAndTheRemedyWhereItIsMissing) {
  expect_missing([](const Directories& places) { (void)Cudnn(places); }, "libcudnn.so.9",
                 "nvidia-cudnn");
}

TEST(Cudnn, SaysWhyItDoesNotStartWithoutAGpu) {
  const Directories directories = holding("libcudnn.so.9");
  if (directories.empty()) {
    GTEST_SKIP() << "libcudnn.so.9 is not installed: run tools/setup cuda";
  }
  if (offload::cuda_unavailable_reason().empty()) {
    EXPECT_GE(Cudnn(directories).version(), 90000U);
    return;
  }
  try {
    (void)Cudnn(directories);
    ADD_FAILURE() << "started without a GPU";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device_error);
    EXPECT_THAT(error.what(), testing::HasSubstr("CUDNN_STATUS"));
  }
}

TEST(CudaOps, AreRefusedWithoutAGpu) {
  if (offload::cuda_unavailable_reason().empty()) {
    EXPECT_NE(make_ops({.library_directories = cuda_library_directories()}), nullptr);
    return;
  }
  try {
    (void)make_ops({.library_directories = cuda_library_directories()});
    ADD_FAILURE() << "made without a GPU";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    EXPECT_THAT(error.what(), testing::HasSubstr("GPU"));
  }
}

}  // namespace
}  // namespace spillway::model::cuda::cuda_libraries_test
