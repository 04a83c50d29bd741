// Memory-centric tiling: matrices in tiles train with the same bits wherever the tiles live, inside
// a device that holds a fraction of the largest of them.
#include <gtest/gtest.h>

#include <map>

#include "runtime/base/error.hpp"
#include "tests/engine/expect_memory.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::operator_tile_test {
namespace {

constexpr int kSteps = 4;
/// The tiny Llama's matrices have 4,608 and 2,304 parameters, its rows 48 or 96: tiles hold some
/// rows of one or several matrices.
constexpr std::uint64_t kTile = 1500;

config::TrainOptions tiled_options(DType compute) {
  config::TrainOptions options = tiny_options();
  options.compute = compute;
  options.operator_tile = kTile;
  options.state_home = config::StateHome::device;
  return options;
}

model::ModelConfig tiny_model(bool tied) {
  model::ModelConfig config = tiny_llama();
  config.tied_head = tied;
  return config;
}

const Outcome& reference(DType compute, bool tied = false) {
  static std::map<std::pair<DType, bool>, Outcome> cache;
  Outcome& outcome = cache[{compute, tied}];
  if (outcome.losses.empty()) {
    TrainingHarness harness(tiny_model(tied));
    outcome = harness.train(tiled_options(compute), kSteps);
  }
  return outcome;
}

struct Variation {
  std::string name;
  std::function<void(config::TrainOptions&)> apply;
};

void PrintTo(const Variation& variation, std::ostream* out) { *out << variation.name; }

void streamed(config::TrainOptions& options) {
  options.state_home = config::StateHome::host;
  options.residency = config::Residency::none;
  options.checkpointing = config::Checkpointing::recompute;
}

std::vector<Variation> variations() {
  std::vector<Variation> list{
      {"host", [](config::TrainOptions& o) { o.state_home = config::StateHome::host; }},
      {"streamed", streamed},
      {"streamed_and_kept",
       [](config::TrainOptions& o) {
         streamed(o);
         o.checkpointing = config::Checkpointing::keep;
       }},
      {"recomputed_on_device",
       [](config::TrainOptions& o) { o.checkpointing = config::Checkpointing::recompute; }},
      {"resident_with_host_state",
       [](config::TrainOptions& o) {
         o.state_home = config::StateHome::host;
         o.residency = config::Residency::all;
       }},
      {"streamed_from_nvme",
       [](config::TrainOptions& o) {
         streamed(o);
         o.state_home = config::StateHome::nvme;
       }},
      {"micro_batch_major",
       [](config::TrainOptions& o) {
         streamed(o);
         o.work_order = config::WorkOrder::micro_batch_major;
       }},
  };
  for (const std::uint32_t prefetch : {0U, 3U}) {
    list.push_back({"prefetch_" + std::to_string(prefetch), [=](config::TrainOptions& o) {
                      streamed(o);
                      o.prefetch = prefetch;
                    }});
  }
  return list;
}

class TiledExactness : public testing::TestWithParam<Variation> {
 protected:
  static void expect_same_bits(DType compute, bool tied) {
    TrainingHarness harness(tiny_model(tied));
    config::TrainOptions options = tiled_options(compute);
    GetParam().apply(options);
    EXPECT_EQ(harness.train(options, kSteps), reference(compute, tied)) << name_of(compute);
  }
};

TEST_P(TiledExactness, SameBitsAsWithAllTilesOnTheDevice) {
  for (const DType compute : {DType::fp32, DType::bf16}) expect_same_bits(compute, false);
}

TEST_P(TiledExactness, SameBitsOfATiedHead) {
  for (const DType compute : {DType::fp32, DType::bf16}) expect_same_bits(compute, true);
}

INSTANTIATE_TEST_SUITE_P(Placement, TiledExactness, testing::ValuesIn(variations()),
                         [](const auto& variation) { return variation.param.name; });

TEST(OperatorTile, TrainsAsTheWholeModelDoes) {
  for (const bool tied : {false, true}) {
    TrainingHarness harness(tiny_model(tied));
    config::TrainOptions options = tiled_options(DType::fp32);
    const Outcome tiled = harness.train(options, 20);
    options.operator_tile = 0;
    const Outcome whole = harness.train(options, 20);
    EXPECT_LT(whole.losses.back(), 0.9 * whole.losses.front()) << "it learns";
    for (std::size_t i = 0; i < whole.losses.size(); ++i) {
      // Sums in other orders, amplified by 20 steps of Adam.
      EXPECT_NEAR(tiled.losses[i], whole.losses[i], 1e-4 * whole.losses[i])
          << "step " << i << (tied ? ", tied" : "");
    }
  }
}

TEST(OperatorTile, ResumesWithTheSameBits) {
  TrainingHarness harness(tiny_model(true));
  config::TrainOptions options = tiled_options(DType::bf16);
  streamed(options);
  const auto run = harness.new_run();
  Outcome outcome;
  {
    const auto trainer = harness.make(options, run);
    harness.steps(*trainer, options, 2, outcome);
    trainer->cycle().commit();
  }
  const auto trainer = harness.make(options, run, true);
  harness.steps(*trainer, options, kSteps - 2, outcome);
  harness.finish(*trainer, outcome);
  EXPECT_EQ(outcome, reference(DType::bf16, true));
}

void expect_moves_of_tiles(bool tied) {
  TrainingHarness harness(tiny_model(tied));
  config::TrainOptions options = tiled_options(DType::bf16);
  streamed(options);
  const auto trainer = harness.make(options, harness.new_run());
  Outcome outcome;
  harness.steps(*trainer, options, kSteps, outcome);
  const plan::Workload& w = trainer->engine().workload();
  std::uint64_t up = 0;
  std::uint64_t down = 0;
  for (std::uint32_t b = 1; b < w.blocks.size(); ++b) {
    const std::uint64_t padded = w.blocks[b].padded_parameters.value();
    const std::uint64_t of_embedding = tied ? 3 : 1;  // the loss runs on it twice
    const std::uint64_t visits = w.blocks[b].layer == 0       ? of_embedding
                                 : w.blocks[b].feeds_backward ? 3
                                                              : 2;
    up += visits * padded;
    down += padded;
  }
  const std::uint64_t vectors = w.blocks[0].padded_parameters.value();
  const std::uint64_t rounds = kSteps * 2;
  // The vectors go up after each of their updates, of which the last is still due.
  EXPECT_EQ(trainer->engine().actions().moved(plan::kUploadParams).value(),
            2 * (rounds * up + (kSteps - 1) * vectors));
  EXPECT_EQ(trainer->engine().actions().moved(plan::kDownloadGrads).value(),
            2 * rounds * (down + vectors));
}

TEST(OperatorTile, MovesEachTileThreeTimesARoundAndItsGradientOnce) {
  expect_moves_of_tiles(false);
  expect_moves_of_tiles(true);
}

TEST(OperatorTile, BackendHoldsExactlyWhatThePlanLists) {
  for (const bool tied : {false, true}) {
    TrainingHarness harness(tiny_model(tied));
    for (const config::StateHome home :
         {config::StateHome::device, config::StateHome::host, config::StateHome::nvme}) {
      config::TrainOptions options = tiled_options(DType::bf16);
      options.state_home = home;
      const auto trainer = harness.make(options, harness.new_run());
      const auto constants = Bytes{trainer->engine().workload().constant_bytes};
      EXPECT_GT(constants, Bytes{});
      expect_memory_as_planned(*trainer);
    }
  }
}

/// Its largest matrices have a million parameters, 4 MiB.
model::ModelConfig wide_llama() {
  model::ModelConfig config = tiny_llama(2);
  config.vocab_size = 301;
  config.width = 256;
  config.heads = 8;
  config.kv_heads = 2;
  config.head_dim = 32;
  config.ffn_width = 4096;
  return config;
}

TEST(OperatorTile, ADeviceOfAQuarterOfTheLargestMatrixTrainsWithTheSameBits) {
  const model::ModelConfig config = wide_llama();
  TrainingHarness harness(config);
  config::TrainOptions options = tiny_options();
  options.device = config::DeviceKind::host;  // a GPU's libraries alone want more than this
  options.micro_batch = 1;
  options.context = 4;
  options.gradient_accumulation_steps = 2;
  options.rounds = 1;
  options.operator_tile = 16384;
  options.state_home = config::StateHome::device;
  const Outcome resident = harness.train(options, kSteps);

  const Bytes largest{std::uint64_t{config.width} * config.ffn_width * sizeof(float)};
  options.state_home = config::StateHome::automatic;
  options.device_memory = Bytes{largest.value() / 4};
  const auto trainer = harness.make(options, harness.new_run());
  Outcome streamed;
  harness.steps(*trainer, options, kSteps, streamed);
  EXPECT_LE(trainer->engine().backend().usage(offload::MemoryKind::device).high_water,
            *options.device_memory);
  harness.finish(*trainer, streamed);
  EXPECT_EQ(streamed, resident);

  options.operator_tile = 0;
  EXPECT_THROW(static_cast<void>(harness.make(options, harness.new_run())), Error)
      << "one matrix alone is larger than the device";
}

}  // namespace
}  // namespace spillway::engine::operator_tile_test
