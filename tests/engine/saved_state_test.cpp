// What ranks have saved is loaded by another number of them, in another stage, tier and format, and
// read by whoever wants a part of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/engine/ranks_harness.hpp"

namespace spillway::engine::saved_state_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::uint32_t kSavers = 4;
constexpr int kStepsBefore = 2;

/// How a job is cut, beside its ranks.
struct Cut {
  StateFormat format = StateFormat::split;
  config::StateHome home = config::StateHome::nvme;
  std::uint64_t leaves = 2;  ///< of a tile
};

Job job_of(const plan::Replicas& ranks, const Cut& cut) {
  return {.replicas = ranks, .adjust = [cut](config::TrainOptions& options) {
            options.compute = DType::bf16;
            options.state_format = cut.format;
            options.state_home = cut.home;
            options.tile_parameters = cut.leaves * kLeafParameters;
          }};
}

plan::Replicas fixed_order(std::uint32_t count, plan::Sharding sharding) {
  return {.count = count, .sharding = sharding, .sums = plan::SumOrder::fixed};
}

JobOutcome save(RanksHarness& harness, plan::Sharding sharding, const Cut& cut) {
  Job job = job_of(fixed_order(kSavers, sharding), cut);
  job.steps = kStepsBefore;
  return harness.train_job(job);
}

class GoOnFromFour : public testing::TestWithParam<std::uint32_t> {};

/// Each time from another stage and tier to another, with tiles of other sizes.
TEST_P(GoOnFromFour, WithTheBitsOfARunThatWasNotInterrupted) {
  struct Way {
    plan::Sharding from, to;
    StateFormat format;
    config::StateHome home_before, home_after;
  };
  using enum plan::Sharding;
  using enum config::StateHome;
  const Way ways[] = {{none, state, StateFormat::split, host, nvme},
                      {state, parameters, StateFormat::int8, nvme, host},
                      {parameters, none, StateFormat::bf16, nvme, nvme},
                      {parameters, state, StateFormat::fp32, host, host}};
  RanksHarness harness(tiny_gpt2(1));
  for (const Way& way : ways) {
    const Outcome one =
        harness.train_job(job_of(fixed_order(1, none), {way.format, way.home_before})).outcome;
    const JobOutcome saved = save(harness, way.from, {way.format, way.home_before, 2});
    Job job = job_of(fixed_order(GetParam(), way.to), {way.format, way.home_after, 3});
    job.steps = kSteps - kStepsBefore;
    job.from = &saved.saved;
    const Outcome after = harness.train_job(job).outcome;
    Outcome whole = saved.outcome;
    whole.losses.insert(whole.losses.end(), after.losses.begin(), after.losses.end());
    whole.norms.insert(whole.norms.end(), after.norms.begin(), after.norms.end());
    whole.masters = after.masters;
    EXPECT_TRUE(whole == one) << name_of(way.format) << " from " << static_cast<int>(way.from);
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, GoOnFromFour, testing::Values(1, 2, 3, 8));

/// Returns all that is saved of a block: masters, then both moments.
std::vector<float> values_of(const SavedState& saved, std::uint32_t block) {
  const std::size_t count = saved.blocks()[block].value();
  std::vector<float> values(3 * count);
  const std::span<float> all(values);
  saved.read(BlockIndex{block}, {}, {all.first(count), all.subspan(count, count), all.last(count)});
  return values;
}

SavedState open(const SavedJob& job) { return {job.shape, job.stores}; }

TEST(SavedStateOfRanks, KeepsEveryValueInAFormatThatHoldsIt) {
  RanksHarness harness(tiny_gpt2(1));
  const JobOutcome four = save(harness, plan::Sharding::state, {StateFormat::split});
  for (const StateFormat format : {StateFormat::fp32, StateFormat::bf16}) {
    Job job = job_of(fixed_order(3, plan::Sharding::parameters), {.format = format, .leaves = 1});
    job.from = &four.saved;
    job.steps = 0;
    const JobOutcome three = harness.train_job(job);
    const SavedState before = open(four.saved), after = open(three.saved);
    EXPECT_TRUE(after.state() == before.state());
    EXPECT_EQ(after.grid().ranks(), 3U);
    for (std::uint32_t block = 0; block < before.blocks().size(); ++block) {
      std::vector<float> expected = values_of(before, block), actual = values_of(after, block);
      const std::size_t masters = before.blocks()[block].value();
      // bf16 rounds moments.
      const std::size_t exact = format == StateFormat::bf16 ? masters : 3 * masters;
      EXPECT_EQ(std::memcmp(actual.data(), expected.data(), exact * sizeof(float)), 0);
      for (std::size_t i = masters; i < 3 * masters; ++i) {
        ASSERT_NEAR(actual[i], expected[i], std::abs(expected[i]) / 256);  // half of 2^-7
      }
    }
  }
}

/// In format split a tile of 2 leaves has 12 bytes a parameter, and so has a window of 64 leaves.
TEST(SavedStateOfRanks, IsReadThroughATileAndAWindow) {
  RanksHarness harness(tiny_gpt2(1));
  const JobOutcome four = save(harness, plan::Sharding::state, {.leaves = 2});
  EXPECT_EQ(open(four.saved).reading_bytes(), Bytes{(2 + 64) * 4096 * 12});
}

/// The version is what docs/formats.md says of the first eight bytes.
TEST(SavedRank, HasTheVersionOfWhatItTells) {
  SavedRank rank;
  const auto version = [&rank] {
    std::vector<std::byte> record;
    encode(TrainingState{}, rank, record);
    std::uint64_t number = 0;
    std::memcpy(&number, record.data(), sizeof number);
    return number;
  };
  EXPECT_EQ(version(), 2U);
  rank.grid.stages = 2;
  rank.layers = {{.first = 0, .end = 2}};
  EXPECT_EQ(version(), 3U);
  rank.grid.tensor = 2;
  EXPECT_EQ(version(), 4U);
}

/// Two stages of one replica, whose matrices two ranks share.
TEST(SavedRank, OfAStageOrAPartBeyondTheLastIsRefused) {
  std::vector<std::byte> record;
  encode(TrainingState{}, {.grid = {.stages = 2, .tensor = 2}, .layers = {{.first = 3, .end = 5}}},
         record);
  // docs/formats.md: bytes 80 to 95 are the number of stages, the stage, parts and the part.
  const auto rank_of = [&record](std::uint32_t stage, std::uint32_t part) {
    std::memcpy(record.data() + 84, &stage, sizeof stage);
    std::memcpy(record.data() + 92, &part, sizeof part);
    return decode_rank(record).rank;
  };
  EXPECT_EQ(rank_of(1, 1), 3U);
  EXPECT_THROW(rank_of(2, 0), Error);
  EXPECT_THROW(rank_of(0, 2), Error);
}

TEST(Overtaken, EndsAReaderThatItHasMetEightTimes) {
  int calls = 0;
  const auto overtaken = [&](int times) {
    calls = 0;
    return retry_overtaken([&] {
      if (++calls <= times) throw Overtaken("state");
      return calls;
    });
  };
  EXPECT_EQ(overtaken(7), 8);
  EXPECT_THROW(overtaken(8), Overtaken);
  EXPECT_EQ(calls, 8);
}

class SavedStateErrors : public testing::Test {
 protected:
  SavedStateErrors() : harness_(tiny_gpt2(1)), saved_(save_steps(kStepsBefore)) {}

  SavedJob save_steps(int steps) {
    Job job = job_of(fixed_order(kSavers, plan::Sharding::state), {});
    job.steps = steps;
    return harness_.train_job(job).saved;
  }
  [[nodiscard]] static std::filesystem::path folder(const SavedJob& job, std::uint32_t rank) {
    return job.stores[rank].directories[0];
  }
  /// Changes each page but those of the first quarter, where the header and the records are.
  static void damage(const std::filesystem::path& file) {
    const std::uintmax_t size = std::filesystem::file_size(file);
    std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
    for (std::uintmax_t at = size / 4 / kPageBytes * kPageBytes; at < size; at += kPageBytes) {
      stream.seekp(static_cast<std::streamoff>(at + 5));
      stream.put('x');
    }
  }
  /// Reads what a rank has of a layer.
  static std::vector<float> read_shard(const SavedState& saved, std::uint64_t rank) {
    const auto layer = static_cast<std::uint32_t>(saved.blocks().size() - 2);
    const std::uint64_t shard = plan::pad(saved.blocks()[layer], kSavers).value() / kSavers;
    std::vector<float> masters(shard);
    saved.read(BlockIndex{layer}, ElementCount{rank * shard}, {masters, {}, {}});
    return masters;
  }
  [[nodiscard]] static std::string refusal(const SavedJob& job) {
    try {
      static_cast<void>(open(job));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
      return error.what();
    }
    return "opened";
  }

  RanksHarness harness_;
  SavedJob saved_;
};

TEST_F(SavedStateErrors, NameARankWhoseFolderIsMissingOrTorn) {
  const std::filesystem::path lost = folder(saved_, 2);
  std::filesystem::resize_file(lost / "tiles-0.swap",
                               std::filesystem::file_size(lost / "tiles-0.swap") / 2);
  EXPECT_THAT(refusal(saved_), AllOf(HasSubstr("rank 2 of 4"), HasSubstr(lost.string())));
  std::filesystem::remove_all(lost);
  EXPECT_THAT(refusal(saved_), AllOf(HasSubstr("rank 2 of 4"), HasSubstr(lost.string())));
}

TEST_F(SavedStateErrors, NameRanksThatHaveNoStepInCommon) {
  const SavedJob ahead = save_steps(kStepsBefore + 2);
  SavedJob mixed = saved_;
  mixed.stores[3] = ahead.stores[3];
  EXPECT_THAT(refusal(mixed), AllOf(HasSubstr("rank 3 of 4: " + folder(ahead, 3).string()),
                                    HasSubstr("from step 2, and its newest commit is of step 4")));
}

/// As a kill between the commits of two ranks leaves them.
TEST_F(SavedStateErrors, AreNoneForRanksThatAreOneStepAhead) {
  const SavedJob ahead = save_steps(kStepsBefore + 1);
  const SavedState expected = open(saved_);
  for (const std::vector<std::uint32_t>& those : {std::vector{3U}, {0U}, {0U, 1U, 3U}}) {
    SavedJob mixed = saved_;
    for (const std::uint32_t rank : those) mixed.stores[rank] = ahead.stores[rank];
    const SavedState saved = open(mixed);
    EXPECT_TRUE(saved.state() == expected.state());
    for (std::uint32_t block = 0; block < saved.blocks().size(); ++block) {
      EXPECT_EQ(values_of(saved, block), values_of(expected, block));
    }
  }
}

/// Such a rank is damaged, and not written by somebody who is faster than this reader.
TEST_F(SavedStateErrors, NameTheDamageOfARankThatIsOneStepAhead) {
  const SavedJob ahead = save_steps(kStepsBefore + 1);
  SavedJob mixed = saved_;
  mixed.stores[3] = ahead.stores[3];
  damage(folder(ahead, 3) / "tiles-0.swap");
  const SavedState saved = open(mixed);
  try {
    read_shard(saved, 3);
    ADD_FAILURE() << "a damaged tile was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("rank 3 of 4 at step 2"), HasSubstr(folder(ahead, 3).string())));
  }
}

TEST_F(SavedStateErrors, NameRanksInAnotherOrderOrNumber) {
  SavedJob swapped = saved_;
  std::swap(swapped.stores[1], swapped.stores[2]);
  EXPECT_THAT(refusal(swapped), AllOf(HasSubstr("rank 2 of 4, where that of rank 1 of 4 should be"),
                                      HasSubstr(folder(saved_, 2).string())));
  SavedJob fewer = saved_;
  fewer.stores.pop_back();
  EXPECT_THAT(refusal(fewer), HasSubstr("rank 0 of 4, where that of rank 0 of 3 should be"));
}

TEST_F(SavedStateErrors, NameAShardOfAnotherModel) {
  SavedJob other = saved_;
  other.shape.blocks[1] += ElementCount{2 * kSavers * kLeafParameters};
  EXPECT_THAT(refusal(other), AllOf(HasSubstr("rank 0 of 4"), HasSubstr("step 2 of another model"),
                                    HasSubstr(folder(saved_, 0).string())));
  RanksHarness larger(tiny_gpt2(2));
  Job job = job_of(fixed_order(1, plan::Sharding::none), {});
  job.from = &saved_;
  EXPECT_THROW(larger.train_job(job), Error);
}

/// Damage in a shard is found by who reads it, and by nobody else.
TEST_F(SavedStateErrors, NameADamagedTileWhereItIsRead) {
  const std::filesystem::path file = folder(saved_, 3) / "tiles-0.swap";
  damage(file);
  const SavedState saved = open(saved_);
  for (std::uint64_t rank = 0; rank < 3; ++rank) EXPECT_NO_THROW(read_shard(saved, rank));
  const std::vector<float> sound = read_shard(saved, 2);
  try {
    read_shard(saved, 3);
    ADD_FAILURE() << "a damaged tile was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 3 of 4 at step 2"), HasSubstr(file.string())));
  }
  EXPECT_EQ(read_shard(saved, 2), sound) << "the damaged tile took its place";
}

TEST_F(SavedStateErrors, NameThisRankIfAStoreIsResumedByAnother) {
  config::TrainOptions options = options_of_ranks(1, plan::SumOrder::fixed);
  options.compute = DType::bf16;
  options.state_format = StateFormat::split;
  options.state_home = config::StateHome::nvme;
  options.nvme = {folder(saved_, 1)};
  try {
    static_cast<void>(harness_.make(options, {}, true));
    ADD_FAILURE() << "resumed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("holds the state of rank 1 of 4, and this is rank 0 of 1"));
  }
}

}  // namespace
}  // namespace spillway::engine::saved_state_test
