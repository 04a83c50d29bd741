// cuDNN and NCCL of versions that the program cannot use are passed over. Stubs say the versions
// (tests/support/stub_libraries).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "comm/nccl/nccl_version.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/shared_library.hpp"
#include "runtime/model/cuda/attention/cudnn_version.hpp"

namespace spillway::library_versions_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kCudnn = "libcudnn.so.9";
constexpr const char* kNccl = "libnccl.so.2";
constexpr auto kAgainstNccl = comm::detail::reason_against_nccl<int(int*)>;

fs::path stubs(const char* version) {
  const fs::path program = fs::read_symlink("/proc/self/exe");
  return program.parent_path().parent_path() / "support/stub_libraries" / version;
}

template <class Load>
std::string warnings_of(const Load& load) {
  testing::internal::CaptureStderr();
  set_log_level(LogLevel::warning);
  load();
  set_log_level(LogLevel::off);
  return testing::internal::GetCapturedStderr();
}

std::string refusal(const char* name, const std::vector<fs::path>& places,
                    const LibraryCheck& wanted) {
  try {
    const SharedLibrary library(name, places, "install the right one", wanted);
    return "loaded " + library.path();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    return error.what();
  }
}

TEST(LibraryVersions, ACudnnForAnotherCudaOrTooOldIsPassedOver) {
  const std::vector<fs::path> places{stubs("cuda12"), stubs("old"), "/no/such/place",
                                     stubs("good")};
  std::optional<SharedLibrary> library;
  const std::string said =
      warnings_of([&] { library.emplace(kCudnn, places, "", model::cuda::reason_against_cudnn); });
  EXPECT_EQ(library->path(), places.back() / kCudnn);
  // It has parts of its own, and not those of a candidate that was looked at before.
  EXPECT_EQ(library->function<std::size_t()>("cudnnGetVersion")(), 91900U);
  EXPECT_EQ(library->function<std::size_t()>("cudnnGetCudartVersion")(), 13010U);
  EXPECT_THAT(said, HasSubstr((places[0] / kCudnn).string() + " is cuDNN 9.19.0 for CUDA 12.9"));
  EXPECT_THAT(said, HasSubstr((places[1] / kCudnn).string() + " is cuDNN 9.10.2 for CUDA 13.0"));
  EXPECT_THAT(said, HasSubstr("passed over"));
  // Later ones are told without another look, of which a process has few.
  for (int more = 0; more < 30; ++more) {
    const SharedLibrary again(kCudnn, places, "", model::cuda::reason_against_cudnn);
    ASSERT_EQ(again.native(), library->native());
  }
}

TEST(LibraryVersions, AnNcclForAnotherCudaOrTooOldIsPassedOver) {
  const std::vector<fs::path> places{stubs("cuda12"), stubs("old"), stubs("good")};
  std::optional<SharedLibrary> library;
  const std::string said = warnings_of([&] { library.emplace(kNccl, places, "", kAgainstNccl); });
  EXPECT_EQ(library->path(), places.back() / kNccl);
  EXPECT_THAT(said, HasSubstr((places[0] / kNccl).string() + " is NCCL 2.28.9 for CUDA 12,"));
  EXPECT_THAT(said, HasSubstr((places[1] / kNccl).string() + " is NCCL 2.17.3,"));
}

TEST(LibraryVersions, WhereNoneIsWantedEachIsNamedWithItsVersion) {
  const std::vector<fs::path> places{stubs("cuda12"), stubs("old")};
  EXPECT_THAT(refusal(kCudnn, places, model::cuda::reason_against_cudnn),
              AllOf(HasSubstr("install the right one"), HasSubstr("CUDA 12.9"),
                    HasSubstr("9.10.2 for CUDA 13.0, and 9.18 or newer for CUDA 13 is needed")));
  EXPECT_THAT(refusal(kNccl, places, kAgainstNccl),
              AllOf(HasSubstr("install the right one"), HasSubstr("one for CUDA 13 is needed"),
                    HasSubstr("2.17.3, and 2.18.1 or newer is needed")));
}

TEST(LibraryVersions, ALibraryThatDoesNotTellItsVersionIsRefused) {
  const std::vector<fs::path> places{stubs("good")};
  for (const LibraryCheck& wanted :
       {LibraryCheck(model::cuda::reason_against_cudnn), LibraryCheck(kAgainstNccl)}) {
    EXPECT_THAT(refusal("libstub_part.so.9", places, wanted),
                HasSubstr("does not tell its version"));
  }
}

TEST(NcclVersions, AreToldAsPeopleDo) {
  EXPECT_EQ(comm::detail::nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(comm::detail::nccl_version_text(2708), "2.7.8");
}

}  // namespace
}  // namespace spillway::library_versions_test
