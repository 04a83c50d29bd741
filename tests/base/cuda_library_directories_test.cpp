// Where NVIDIA's libraries are looked for, in a file system made for the test.
#include "runtime/base/cuda_library_directories.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/temporary_directory.hpp"

namespace spillway::cuda_library_directories_test {
namespace {

namespace fs = std::filesystem;

bool has(const std::vector<fs::path>& directories, const fs::path& wanted) {
  return std::ranges::find(directories, wanted) != directories.end();
}

TEST(CudaLibraryDirectories, TheLinkersOwnPlacesComeFirst) {
  const test_support::TemporaryDirectory root;
  const std::vector<fs::path> directories = cuda_library_directories(root.path());
  ASSERT_FALSE(directories.empty());
  EXPECT_EQ(directories.front(), fs::path());
}

TEST(CudaLibraryDirectories, ThePlaceBesideTheProgramIsTried) {
  const test_support::TemporaryDirectory root;
  EXPECT_TRUE(
      has(cuda_library_directories(root.path()), fs::read_symlink("/proc/self/exe").parent_path()));
}

TEST(CudaLibraryDirectories, CudasFoldersAndPythonPackagesAreTriedWhereTheyExist) {
  const test_support::TemporaryDirectory root;
  const fs::path toolkit = root.path() / "usr/local/cuda/lib64";
  const fs::path debian = root.path() / "usr/lib/python3.11/dist-packages/nvidia/cu13/lib";
  const fs::path own = root.path() / "usr/local/lib/python3.12/site-packages/nvidia/cudnn/lib";
  EXPECT_FALSE(has(cuda_library_directories(root.path()), toolkit));
  for (const fs::path& folder : {toolkit, debian, own}) fs::create_directories(folder);
  const std::vector<fs::path> directories = cuda_library_directories(root.path());
  EXPECT_TRUE(has(directories, toolkit));
  EXPECT_TRUE(has(directories, debian));
  EXPECT_TRUE(has(directories, own));
  EXPECT_FALSE(has(directories, own.parent_path().parent_path() / "nccl/lib"));
}

TEST(CudaLibraryDirectories, NoPlaceIsTriedTwice) {
  const test_support::TemporaryDirectory root;
  std::vector<fs::path> directories = cuda_library_directories(root.path());
  const std::size_t count = directories.size();
  std::ranges::sort(directories);
  directories.erase(std::ranges::unique(directories).begin(), directories.end());
  EXPECT_EQ(directories.size(), count);
}

}  // namespace
}  // namespace spillway::cuda_library_directories_test
