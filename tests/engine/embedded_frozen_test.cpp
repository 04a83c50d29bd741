// Frozen tensors of units that live on disk: passes find the same bytes there as in host memory,
// and what they read, take and refuse is what forecasts and files say.
#include <chrono>
#include <fstream>
#include <map>
#include <thread>

#include "runtime/base/error.hpp"
#include "runtime/engine/embedded_forecast.hpp"
#include "tests/engine/counting_engine.hpp"
#include "tests/engine/embedded_fixture.hpp"
#include "tests/engine/refusal.hpp"

namespace spillway::engine::embedded_frozen_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::uint32_t kUnits = 5;
constexpr std::size_t kEach = 5000;

/// Each unit has a parameter and two frozen tensors, but the third, which is wholly frozen, and the
/// fourth, which has none. One more of either stays on the device.
class EmbeddedFrozenTest : public testing::Test {
 protected:
  EmbeddedFrozenTest() {
    for (std::uint32_t i = 0; i < kUnits; ++i) trained_.push_back(normal(kEach, 10 + i));
    for (std::uint32_t i = 0; i < 2 * kUnits + 1; ++i) {
      frozen_.push_back(normal(2000 + 601 * i, 30 + i));
    }
  }

  [[nodiscard]] static bool is_trained(std::uint32_t unit) { return unit != 2; }
  [[nodiscard]] static bool is_frozen(std::uint32_t unit) { return unit != 3; }
  [[nodiscard]] static std::vector<std::uint32_t> frozen_of(std::uint32_t unit) {
    // Of no unit is the first one.
    if (!is_frozen(unit)) return {};
    const std::uint32_t first = 1 + 2 * (unit < 3 ? unit : unit - 1);
    return {first, first + 1};
  }
  [[nodiscard]] static std::uint32_t parameter_of(std::uint32_t unit) {
    return unit < 2 ? unit : unit - 1;
  }

  [[nodiscard]] std::vector<EmbeddedParameter> parameters(bool streamed = true) const {
    std::vector<EmbeddedParameter> list;
    for (std::uint32_t unit = 0; unit < kUnits; ++unit) {
      if (!is_trained(unit)) continue;
      EmbeddedParameter& each = list.emplace_back();
      each.name = "adapter " + std::to_string(unit);
      each.elements = kEach;
      each.values = bytes_of(trained_[unit]).data();
      if (streamed) each.unit = unit;
    }
    return list;
  }

  [[nodiscard]] std::vector<FrozenTensor> frozen() const {
    std::vector<FrozenTensor> list{{.name = "embedding",
                                    .bytes = Bytes{bytes_of(frozen_[0]).size()},
                                    .values = bytes_of(frozen_[0]).data()}};
    for (std::uint32_t unit = 0; unit < kUnits; ++unit) {
      for (const std::uint32_t i : frozen_of(unit)) {
        list.push_back({.name = "base " + std::to_string(i),
                        .bytes = Bytes{bytes_of(frozen_[i]).size()},
                        .unit = unit,
                        .values = bytes_of(frozen_[i]).data()});
      }
    }
    return list;
  }

  [[nodiscard]] EmbeddedOptions on_disk() const {
    EmbeddedOptions options = options_for();
    options.device_memory = 192_KiB;
    options.frozen_nvme = {directory_.path() / "disk"};
    return options;
  }

  void pass(EmbeddedTrainer& trainer, std::uint32_t unit, EmbeddedPass pass) {
    trainer.enter(unit, pass);
    for (const std::uint32_t i : frozen_of(unit)) {
      EXPECT_THAT(trainer.device_frozen(i), testing::ElementsAreArray(bytes_of(frozen_[i])));
    }
    trainer.leave(unit);
  }

  void step(EmbeddedTrainer& trainer, int number, bool streamed = true) {
    for (std::uint32_t unit = 0; streamed && unit < kUnits; ++unit) {
      pass(trainer, unit, EmbeddedPass::forward);
    }
    for (std::uint32_t unit = kUnits; unit-- > 0;) {
      if (streamed) pass(trainer, unit, EmbeddedPass::backward);
      if (!is_trained(unit)) continue;
      const auto seed = static_cast<std::uint64_t>(100 * number) + unit;
      trainer.add_gradient(parameter_of(unit), bytes_of(normal(kEach, seed)));
    }
    trainer.step({.max_norm = 1});
  }

  [[nodiscard]] static std::vector<std::byte> values_of(EmbeddedTrainer& trainer) {
    std::vector<std::byte> all;
    for (std::uint32_t i = 0; i < trainer.size(); ++i) {
      const auto values = trainer.values(i);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  [[nodiscard]] fs::path file() const { return directory_.path() / "disk" / "frozen-0.swap"; }

  /// Changes a byte in the middle of a frozen tensor where it lies in the file.
  void damage(std::uint32_t tensor) const {
    std::ifstream in(file(), std::ios::binary);
    const std::string all((std::istreambuf_iterator<char>(in)), {});
    const auto bytes = bytes_of(frozen_[tensor]);
    const auto at =
        all.find(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    ASSERT_NE(at, std::string::npos);
    std::fstream out(file(), std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(at + bytes.size() / 2));
    out.put(static_cast<char>(all[at + bytes.size() / 2] ^ 1));
  }

  ScratchDirectory directory_{"frozen"};
  std::vector<Tensor> trained_, frozen_;
};

/// Bytes of frozen tensors of a unit, one behind the other on multiples of 64.
std::uint64_t extent(const std::vector<Tensor>& frozen, const std::vector<std::uint32_t>& of) {
  std::uint64_t end = 0;
  for (const std::uint32_t i : of) end = (end + 63) / 64 * 64 + 4 * frozen[i].size();
  return end;
}

TEST_F(EmbeddedFrozenTest, TrainsWithTheBitsOfThoseInHostMemoryAndOfParametersThatStay) {
  EmbeddedOptions in_memory = on_disk();
  in_memory.frozen_nvme.clear();
  EmbeddedTrainer disk(on_disk(), parameters(), frozen());
  EmbeddedTrainer memory(in_memory, parameters(), frozen());
  EmbeddedTrainer stays(options_for(), parameters(false));
  for (int number = 1; number <= 5; ++number) {
    const std::vector<std::byte> before = values_of(disk);
    step(disk, number);
    step(memory, number);
    step(stays, number, false);
    EXPECT_NE(values_of(disk), before);
    EXPECT_EQ(values_of(disk), values_of(stays));
    EXPECT_EQ(values_of(memory), values_of(stays));
  }
  EXPECT_EQ(disk.use().uploaded, memory.use().uploaded);
  for (std::uint32_t i = 0; i < frozen().size(); ++i) {
    EXPECT_THAT(disk.frozen_values(i), testing::ElementsAreArray(bytes_of(frozen_[i]))) << i;
  }
}

TEST_F(EmbeddedFrozenTest, AStepReadsEachUnitOnceAPassAndTheHostHasStagingAlone) {
  CountingEngine::Moved moved;
  EmbeddedOptions options = on_disk();
  options.frozen_nvme.push_back(directory_.path() / "other");
  options.adapt = [&moved](auto engine, const auto&) {
    return std::make_unique<CountingEngine>(std::move(engine), moved);
  };
  std::uint64_t all = 0, largest = 0;
  for (std::uint32_t unit = 0; unit < kUnits; ++unit) {
    const std::uint64_t pages = (extent(frozen_, frozen_of(unit)) + 4095) / 4096 * 4096;
    all += pages;
    largest = std::max(largest, pages);
  }
  const EmbeddedForecast forecast(options, parameters(), frozen());
  EXPECT_EQ(forecast.traffic().read, Bytes{2 * all});
  EmbeddedTrainer trainer(options, parameters(), frozen());
  for (int number = 1; number <= 3; ++number) {
    const std::uint64_t read = moved.read, written = moved.written;
    const Bytes counted = trainer.use().read;
    step(trainer, number);
    EXPECT_EQ(moved.read - read, 2 * all);
    EXPECT_EQ(moved.written - written, 0U);
    EXPECT_EQ(trainer.use().read - counted, Bytes{2 * all});
  }
  std::map<std::string, std::uint64_t> bytes;
  for (const plan::MemoryItem& item : trainer.memory()) {
    bytes[std::string(plan::name_of(item.tier)) + " " + item.what] = item.bytes.value();
  }
  EXPECT_EQ(bytes.count("host frozen parameters"), 0U);
  EXPECT_EQ(bytes["host staging of frozen parameters"], 3 * largest);  // two drives
  EXPECT_EQ(bytes["nvme frozen parameters"], all);
  EXPECT_EQ(bytes.count("nvme state, two slots"), 0U);
}

TEST_F(EmbeddedFrozenTest, TheNextUnitIsReadWhileOneComputes) {
  CountingEngine::Moved moved;
  EmbeddedOptions options = on_disk();
  options.device_memory = 100_KiB;  // one unit
  options.adapt = [&moved](auto engine, const auto&) {
    return std::make_unique<CountingEngine>(std::move(engine), moved);
  };
  EmbeddedTrainer trainer(options, parameters(), frozen());
  const std::uint64_t before = moved.read;
  trainer.enter(0, EmbeddedPass::forward);
  // The second and third wait in the two staging buffers, since the first has the only slot.
  std::uint64_t ahead = 0;
  for (const std::uint32_t unit : {0U, 1U, 2U}) {
    ahead += (extent(frozen_, frozen_of(unit)) + 4095) / 4096 * 4096;
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (moved.read - before < ahead && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(moved.read - before, ahead);
  trainer.leave(0);
}

TEST_F(EmbeddedFrozenTest, WhatIsWrittenIsReadByPassesFromThenOn) {
  EmbeddedTrainer trainer(on_disk(), parameters(), frozen());
  step(trainer, 1);
  trainer.enter(0, EmbeddedPass::forward);
  trainer.leave(0);  // others are on their way
  frozen_[3] = normal(frozen_[3].size(), 71);
  frozen_[8] = normal(frozen_[8].size(), 73);
  trainer.write_frozen(
      std::array<FrozenValues, 2>{{{.frozen = 3, .values = bytes_of(frozen_[3])},
                                   {.frozen = 8, .values = bytes_of(frozen_[8])}}});
  step(trainer, 2);
  EXPECT_THAT(trainer.frozen_values(3), testing::ElementsAreArray(bytes_of(frozen_[3])));
  EXPECT_THAT(refusal([&] {
                trainer.write_frozen(
                    std::array<FrozenValues, 1>{{{.frozen = 0, .values = bytes_of(frozen_[0])}}});
              }),
              HasSubstr("invalid_argument: \"embedding\" is of no unit"));
  EXPECT_THAT(refusal([&] {
                trainer.write_frozen(
                    std::array<FrozenValues, 1>{{{.frozen = 1, .values = bytes_of(frozen_[0])}}});
              }),
              AllOf(HasSubstr("invalid_argument: \"base 1\" has "), HasSubstr(" bytes, not 8000")));
}

TEST_F(EmbeddedFrozenTest, AChangedByteIsFoundAndNamed) {
  EmbeddedTrainer trainer(on_disk(), parameters(), frozen());
  step(trainer, 1);
  damage(frozen_of(4)[1]);  // the fourth tile of five units
  pass(trainer, 0, EmbeddedPass::forward);
  const std::string found = refusal([&] {
    for (std::uint32_t unit = 1; unit < kUnits; ++unit) pass(trainer, unit, EmbeddedPass::forward);
  });
  EXPECT_THAT(
      found,
      AllOf(
          HasSubstr(
              "corrupt_data: frozen tensors of the block of \"adapter 4\" cannot be read (tile 3)"),
          HasSubstr(file().string()), HasSubstr("start again")));
  EXPECT_EQ(refusal([&] { trainer.enter(0, EmbeddedPass::forward); }), found);
}

TEST_F(EmbeddedFrozenTest, AFileThatIsCutShortIsFoundAndNamed) {
  EmbeddedTrainer trainer(on_disk(), parameters(), frozen());
  step(trainer, 1);
  fs::resize_file(file(), fs::file_size(file()) - 4096);
  const std::string found = refusal([&] { step(trainer, 2); });
  EXPECT_THAT(
      found,
      AllOf(HasSubstr(
                "io_error: frozen tensors of the block of \"adapter 4\" cannot be read (tile 3)"),
            HasSubstr(file().string()), HasSubstr("start again")));
}

TEST_F(EmbeddedFrozenTest, FilesGoWithTheTrainerWhoseMemoryStays) {
  EndedMemory memory;
  std::span<std::byte> kept;
  {
    // Those that a killed process has left.
    nvme_swap::StoreOptions left;
    left.directories = on_disk().frozen_nvme;
    left.name = "frozen";
    nvme_swap::TileStore::create(left, {.tiles = {8_KiB}}).reset();
    ASSERT_TRUE(fs::exists(file()));
    EmbeddedTrainer trainer(on_disk(), parameters(), frozen());
    step(trainer, 1);
    kept = trainer.frozen_values(2);
    memory = trainer.end();
  }
  EXPECT_FALSE(fs::exists(file()));
  EXPECT_THAT(kept, testing::ElementsAreArray(bytes_of(frozen_[2])));
}

TEST_F(EmbeddedFrozenTest, TheTrainerIsMadeInItsForecastAndInNoByteLess) {
  EmbeddedOptions options = on_disk();
  const EmbeddedForecast forecast(options, parameters(), frozen());
  const Bytes host = plan::total(forecast.memory(), plan::Tier::host) +
                     plan::total(forecast.memory(), plan::Tier::device);
  options.host_memory = host - 1_B;
  EXPECT_THAT(refusal([&] { EmbeddedTrainer(options, parameters(), frozen()); }),
              HasSubstr("does_not_fit"));
  options.host_memory = host;
  EmbeddedTrainer trainer(options, parameters(), frozen());
  step(trainer, 1);
}

TEST_F(EmbeddedFrozenTest, WhatLacksMemoryForMostlyFrozenTensorsIsTold) {
  EmbeddedOptions options = on_disk();
  options.frozen_nvme.clear();
  options.host_memory = 64_KiB;
  std::vector<FrozenTensor> large = frozen();
  const Tensor values(500'000);
  large.push_back({.name = "large",
                   .bytes = Bytes{bytes_of(values).size()},
                   .unit = 0,
                   .values = bytes_of(values).data()});
  options.device_memory = 3_MiB;
  const EmbeddedForecast forecast(options, parameters(), large);
  EXPECT_THAT(forecast.refusal().value_or(""), HasSubstr("on disk (frozen_nvme)"));
}

TEST_F(EmbeddedFrozenTest, PagesOfSeveralProcessesAreInMemory) {
  EmbeddedOptions options = on_disk();
  options.frozen_pages.emplace();
  EXPECT_THAT(refusal([&] { EmbeddedTrainer(options, parameters(), frozen()); }),
              HasSubstr("leave frozen_nvme out"));
}

}  // namespace
}  // namespace spillway::engine::embedded_frozen_test
