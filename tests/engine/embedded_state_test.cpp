// State that is read, written, saved and loaded between steps, on a disk that fails or counts.
#include <atomic>
#include <barrier>
#include <fstream>
#include <thread>

#include "nvme_swap/failing_engine.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/embedded/checkpoint/checkpoint_folder.hpp"
#include "tests/engine/counting_engine.hpp"
#include "tests/engine/embedded_fixture.hpp"
#include "tests/engine/refusal.hpp"

namespace spillway::engine::embedded_state_test {
namespace {

namespace fs = std::filesystem;
using nvme_swap::FailingEngine;
using nvme_swap::IoOperation;

class EmbeddedStateTest : public EmbeddedTrainerTest {
 protected:
  /// State of trainers that are made with these options is on a disk that `fail` reaches.
  EmbeddedOptions on_disk() {
    EmbeddedOptions options = options_for();
    options.nvme = {directory_.path() / "swap"};
    options.adapt = [this](auto engine, const auto& how) {
      auto failing = std::make_unique<FailingEngine>(std::move(engine), how);
      disks_.push_back(failing.get());
      if (at_start_) failing->arm(*at_start_);
      return failing;
    };
    return options;
  }

  /// Makes one operation of the first trainer's disk fail: number `nth` of its kind, from 1.
  void fail(IoOperation operation, std::uint64_t nth) {
    disks_.front()->arm({.operation = operation, .first = nth});
  }
  [[nodiscard]] std::uint64_t failures() const { return disks_.front()->spoiled(); }
  void mend() { disks_.front()->disarm(); }

  /// Everything that would go on from a state that is new in a part alone.
  void expect_refused(EmbeddedTrainer& trainer, int step) {
    const auto refused = testing::AllOf(testing::HasSubstr("corrupt_data: the state of \"layer."),
                                        testing::HasSubstr("load a checkpoint"));
    backward(trainer, step);
    EXPECT_THAT(refusal([&] { static_cast<void>(trainer.grad_norm()); }), refused);
    EXPECT_THAT(refusal([&] { trainer.step({}); }), refused);
    trainer.discard_gradients();
    EXPECT_THAT(refusal([&] { trainer.save(directory_.path() / "refused"); }), refused);
    EXPECT_FALSE(fs::exists(directory_.path() / "refused"));
    EXPECT_THAT(refusal([&] { state(trainer); }), refused);
  }

  std::vector<FailingEngine*> disks_;         // of the stores in the order in which they were made
  std::optional<nvme_swap::Fault> at_start_;  // of stores that are made from now on
};

/// Changes the last byte of a checkpoint's state, which belongs to its last tile.
void damage(const fs::path& checkpoint) {
  std::fstream file(checkpoint / "state-0.swap", std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(-1, std::ios::end);
  const int last = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(last ^ 1));
  ASSERT_TRUE(file.good());
}

TEST_F(EmbeddedStateTest, ADamagedCheckpointHasChangedNothing) {
  for (const bool on_nvme : {false, true}) {
    const fs::path checkpoint = directory_.path() / (on_nvme ? "a" : "b");
    const auto saved = make(options_for());
    train(*saved, 1, 2);
    saved->save(checkpoint);
    damage(checkpoint);
    const auto trainer = make(on_nvme ? on_disk() : options_for());
    const auto reference = make(options_for());
    EXPECT_TRUE(train(*trainer, 11, 13) == train(*reference, 11, 13));
    EXPECT_THAT(refusal([&] { trainer->load(checkpoint); }), testing::StartsWith("corrupt_data: "));
    EXPECT_EQ(state(*trainer), state(*reference));
    EXPECT_EQ(trainer->steps(), 3U);
    EXPECT_TRUE(train(*trainer, 14, 15) == train(*reference, 14, 15));
  }
}

TEST_F(EmbeddedStateTest, ALoadThatTheDiskCutsOffIsMadeAgain) {
  const auto saved = make(options_for());
  train(*saved, 1, 2);
  saved->save(directory_.path() / "checkpoint");
  const auto trainer = make(on_disk());
  std::uint64_t nth = 1;
  for (;; ++nth) {
    train(*trainer, 11, 11);
    const std::uint64_t before = failures();
    fail(IoOperation::write, nth);
    const std::string end = refusal([&] { trainer->load(directory_.path() / "checkpoint"); });
    mend();
    if (failures() == before) break;
    EXPECT_THAT(end, testing::StartsWith("io_error: ")) << nth;
    expect_refused(*trainer, 12);
    EXPECT_THAT(refusal([&] { trainer->write_state(1, {}, {}, {}); }),
                testing::HasSubstr("\"layer.1\" is new in a part alone"));
    trainer->load(directory_.path() / "checkpoint");
    EXPECT_EQ(state(*trainer), state(*saved));
  }
  EXPECT_GT(nth, 3U);
  EXPECT_TRUE(train(*trainer, 3, 4) == train(*saved, 3, 4));
}

TEST_F(EmbeddedStateTest, AStateThatTheDiskCutsOffIsWrittenAgain) {
  constexpr std::uint32_t kLarge = 4;  // whose tiles are two or more
  const auto other = make(options_for());
  train(*other, 1, 2);
  const std::size_t count = model_.sizes[kLarge];
  std::vector<float> master(count), m(count), v(count);
  other->read_state(kLarge, master, m, v);
  const auto trainer = make(on_disk());
  const auto reference = make(options_for());
  train(*reference, 11, 12);
  reference->write_state(kLarge, master, m, v);
  train(*trainer, 11, 12);
  for (const IoOperation operation : {IoOperation::read, IoOperation::write}) {
    for (std::uint64_t nth = 1;; ++nth) {
      const std::uint64_t before = failures();
      fail(operation, nth);
      const std::string end = refusal([&] { trainer->write_state(kLarge, master, m, v); });
      mend();
      if (failures() == before) break;
      EXPECT_THAT(end, testing::StartsWith("io_error: "));
      expect_refused(*trainer, 13);
      trainer->write_state(kLarge, master, m, v);
      EXPECT_EQ(state(*trainer), state(*reference));
    }
  }
  EXPECT_GE(failures(), 2U);
  EXPECT_TRUE(train(*trainer, 13, 14) == train(*reference, 13, 14));
}

TEST_F(EmbeddedStateTest, ValuesThatTheDiskCutsOffAreTakenAgain) {
  constexpr std::uint32_t kLarge = 4;
  const auto trainer = make(on_disk());
  const auto reference = make(options_for());
  train(*trainer, 1, 2);
  train(*reference, 1, 2);
  for (std::uint64_t nth = 1;; ++nth) {
    const Tensor written = normal(model_.sizes[kLarge], 50 + nth);
    for (EmbeddedTrainer* each : {trainer.get(), reference.get()}) {
      std::ranges::copy(bytes_of(written), each->values(kLarge).begin());
    }
    reference->take_values(kLarge);
    const std::uint64_t before = failures();
    fail(IoOperation::read, nth);
    const std::string end = refusal([&] { trainer->take_values(kLarge); });
    mend();
    if (failures() == before) break;
    EXPECT_THAT(end, testing::StartsWith("io_error: "));
    expect_refused(*trainer, 13);
    trainer->take_values(kLarge);
    EXPECT_EQ(state(*trainer), state(*reference));
  }
  EXPECT_GT(failures(), 1U);
  EXPECT_TRUE(train(*trainer, 3, 4) == train(*reference, 3, 4));
}

/// Small parameters share tiles; one is larger than many.
TEST_F(EmbeddedStateTest, BytesOnDiskAreThoseOfTheState) {
  model_.sizes.assign(400, 1000);
  model_.sizes[200] = 1'000'000;
  model_.groups.assign(400, 0);
  model_.values.clear();
  double leaves = 0;
  for (const std::size_t size : model_.sizes) {
    model_.values.push_back(normal(size, size + model_.values.size()));
    leaves += static_cast<double>((size + kLeafParameters - 1) / kLeafParameters);
  }
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    CountingEngine::Moved moved;
    EmbeddedOptions options = options_for(dtype);
    options.tile_parameters = 4 * kLeafParameters;
    const auto reference = make(options);
    const auto resumed = make(options);
    options.nvme = {directory_.path() / "swap"};
    options.adapt = [&moved](auto engine, const auto&) {
      return std::make_unique<CountingEngine>(std::move(engine), moved);
    };
    const auto trainer = make(options);
    EXPECT_TRUE(train(*trainer, 1, 1) == train(*reference, 1, 1));

    const double all = leaves * kLeafParameters;
    const double state_bytes = all * (dtype == DType::fp32 ? 12 : 10);
    const double slot_bytes = all * 12;  // with parameters of 16 bits
    const auto expect_moved = [&](double read, double written) {
      EXPECT_NEAR(static_cast<double>(moved.read.exchange(0)), read, 0.05 * state_bytes);
      EXPECT_NEAR(static_cast<double>(moved.written.exchange(0)), written, 0.05 * slot_bytes);
    };
    moved.read = moved.written = 0;
    std::vector<float> everything = state(*trainer);
    expect_moved(state_bytes, 0);
    EXPECT_EQ(everything, state(*reference));
    for (float& value : everything) value /= 2;
    for (const bool keeps_master : {true, false}) {
      for (EmbeddedTrainer* each : {trainer.get(), reference.get()}) {
        std::span<const float> left(everything);
        for (std::uint32_t i = 0; i < each->size(); ++i) {
          const std::size_t count = model_.sizes[i];
          const auto master = left.first(keeps_master ? 0 : count);
          each->write_state(i, master, left.subspan(count, count), left.subspan(2 * count, count));
          left = left.subspan(3 * count);
        }
      }
      // Of a tile that is replaced nothing is read.
      expect_moved(keeps_master ? state_bytes : state_bytes * (leaves - 244) / leaves, slot_bytes);
    }
    for (EmbeddedTrainer* each : {trainer.get(), reference.get()}) {
      for (std::uint32_t i = 0; i < each->size(); ++i) {
        std::ranges::fill(each->values(i).first(2), std::byte{});
        each->take_values(i, {}, TakenValues::changed);
      }
    }
    // In fp32 only tiles are written in which a master has changed.
    expect_moved(state_bytes, slot_bytes * (dtype == DType::fp32 ? (leaves - 240) / leaves : 1));
    // A save takes what was written itself, and the last tile is in it.
    for (EmbeddedTrainer* each : {trainer.get(), reference.get()}) {
      std::ranges::fill(each->values(399).last(8), std::byte{});
    }
    const fs::path saved = directory_.path() / name_of(dtype);
    trainer->save(saved);
    resumed->load(saved);
    EXPECT_EQ(state(*resumed), state(*reference));
    for (EmbeddedTrainer* each : {trainer.get(), reference.get()}) {
      each->write_state(0, {}, {}, {});
    }
    EXPECT_TRUE(train(*trainer, 2, 3) == train(*reference, 2, 3));
    EXPECT_EQ(state(*trainer), state(*reference));
  }
}

TEST_F(EmbeddedStateTest, ASaveThatFailsLeavesNothingBehind) {
  for (const bool on_nvme : {false, true}) {
    const fs::path folders = directory_.path() / (on_nvme ? "nvme" : "host");
    EmbeddedOptions options = on_disk();
    if (!on_nvme) options.nvme.clear();
    const auto trainer = make(options);
    const auto reference = make(options_for());
    int step = 0;
    for (const auto operation : {IoOperation::write, IoOperation::flush, IoOperation::read}) {
      for (std::uint64_t nth = 1;; ++nth) {
        ++step;
        EXPECT_TRUE(train(*trainer, step, step) == train(*reference, step, step));
        const fs::path folder = folders / std::to_string(step);
        at_start_ = {.operation = operation, .first = nth};
        const std::string end = refusal([&] { trainer->save(folder); });
        at_start_.reset();
        EXPECT_EQ(fs::exists(folder), end == "none");
        if (end == "none") break;
        EXPECT_THAT(end, testing::StartsWith("io_error: "));
      }
    }
    EXPECT_GT(step, 12);
    trainer->save(folders / "elsewhere");
    const auto resumed = make(options_for());
    resumed->load(folders / "elsewhere");
    EXPECT_EQ(state(*resumed), state(*reference));
  }
}

TEST_F(EmbeddedStateTest, OneOfTwoWritersHasAFolder) {
  for (int round = 0; round < 200; ++round) {
    const fs::path folder = directory_.path() / std::to_string(round);
    std::barrier together(2);
    std::atomic<int> made = 0;
    const auto write = [&] {
      together.arrive_and_wait();
      const std::string end = refusal([&] {
        const NewCheckpoint checkpoint(folder, "");
        ++made;
        together.arrive_and_wait();
        EXPECT_TRUE(fs::exists(folder));
      });
      if (end == "none") return;
      EXPECT_THAT(end, testing::HasSubstr("is there already"));
      together.arrive_and_wait();
    };
    std::thread other(write);
    write();
    other.join();
    ASSERT_EQ(made, 1) << round;
  }
}

}  // namespace
}  // namespace spillway::engine::embedded_state_test
