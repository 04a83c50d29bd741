// Values in pages of a file that other processes map: where they lie, what is there before the
// trainer, and that training has the same bits.
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/error.hpp"
#include "tests/engine/embedded_fixture.hpp"

namespace spillway::engine::embedded_shared_test {
namespace {

constexpr std::uint64_t kLeafBytes = kLeafParameters * sizeof(float);

class EmbeddedSharedTest : public EmbeddedTrainerTest {
 protected:
  void SetUp() override {
    file_ = ::memfd_create("values", MFD_CLOEXEC);
    ASSERT_EQ(::ftruncate(file_, 8 * kLeafBytes), 0);
  }
  ~EmbeddedSharedTest() override { ::close(file_); }

  [[nodiscard]] std::vector<std::byte> in_file(std::uint64_t first, std::size_t bytes) const {
    std::vector<std::byte> read(bytes);
    EXPECT_EQ(::pread(file_, read.data(), bytes, static_cast<off_t>(first)),
              static_cast<ssize_t>(bytes));
    return read;
  }

  static std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
    return {bytes.begin(), bytes.end()};
  }

  int file_ = -1;
};

TEST_F(EmbeddedSharedTest, ParametersAreUpdatedInPagesOfAFile) {
  const auto plain = make(options_for());
  EmbeddedOptions options = options_for();
  // The model has leaves 0, 1-2, 3, 4 and 5-7; the upper half of the file comes first.
  options.parameter_pages = {.file = file_,
                             .parts = {{.first = 4 * kLeafBytes, .bytes = 4 * kLeafBytes},
                                       {.first = 0, .bytes = 4 * kLeafBytes}}};
  const auto shared = make(options);
  EXPECT_EQ(train(*shared, 1, 3), train(*plain, 1, 3));
  EXPECT_EQ(state(*shared), state(*plain));
  EXPECT_EQ(in_file(4 * kLeafBytes, model_.sizes[0] * 4), copy_of(plain->values(0)));
  EXPECT_EQ(in_file(5 * kLeafBytes, model_.sizes[1] * 4), copy_of(plain->values(1)));
  EXPECT_EQ(in_file(kLeafBytes, model_.sizes[4] * 4), copy_of(plain->values(4)));
}

TEST_F(EmbeddedSharedTest, FrozenTensorsAreWhatIsInTheFile) {
  const Tensor there = normal(kLeafParameters, 3);
  const Tensor given(kLeafParameters);
  ASSERT_EQ(::pwrite(file_, there.data(), kLeafBytes, kLeafBytes),
            static_cast<ssize_t>(kLeafBytes));
  EmbeddedOptions options = options_for();
  options.device_memory = 1_MiB;
  options.frozen_pages = {.file = file_, .parts = {{.first = kLeafBytes, .bytes = kLeafBytes}}};
  const auto starts = model_.starts(DType::fp32);
  const std::vector<FrozenTensor> frozen{
      {.name = "base", .bytes = Bytes{kLeafBytes}, .unit = 0, .values = bytes_of(given).data()},
      {.name = "embedding", .bytes = Bytes{kLeafBytes}, .values = bytes_of(there).data()}};
  EmbeddedTrainer one(options, model_.parameters(starts), frozen);
  EmbeddedTrainer other(options, model_.parameters(starts), frozen);
  EXPECT_EQ(copy_of(one.frozen_values(0)), copy_of(bytes_of(there)));
  EXPECT_EQ(copy_of(one.frozen_values(1)), copy_of(bytes_of(there)));
  one.frozen_values(0)[7] = std::byte{99};
  other.enter(0, EmbeddedPass::forward);
  EXPECT_EQ(other.device_frozen(0)[7], std::byte{99});
  other.leave(0);
}

TEST_F(EmbeddedSharedTest, RefusesPagesThatAreTooFewOrTooMany) {
  EmbeddedOptions options = options_for();
  for (const std::uint64_t leaves : {7U, 9U}) {
    options.parameter_pages = {.file = file_,
                               .parts = {{.first = 0, .bytes = leaves * kLeafBytes}}};
    ASSERT_EQ(::ftruncate(file_, 16 * kLeafBytes), 0);
    EXPECT_THROW(make(options), Error) << leaves;
  }
}

}  // namespace
}  // namespace spillway::engine::embedded_shared_test
