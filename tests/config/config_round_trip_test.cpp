// to_config_json and parse_train_config are inverse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/config/keys.hpp"
#include "runtime/config/options_table.hpp"
#include "runtime/config/schedule.hpp"
#include "tests/config/config_test_support.hpp"

namespace spillway::config::config_round_trip_test {
namespace {

using test::validate_error;
using testing::HasSubstr;

/// Every member, by structured bindings: a new one does not compile until it is compared here.
void expect_equal(const TrainOptions& a, const TrainOptions& b) {
  const auto members = [](const TrainOptions& options) {
    const auto& [micro_batch, accumulation, rounds, sum_order, context, clipping, compute, device,
                 deterministic, tf32, attention, loss_scale, adam, schedule, decay, format, order,
                 seed, steps, tile, operator_tile, delayed_from, update, work_order, checkpointing,
                 residency, home, activations, sums, prefetch, device_index, generation,
                 device_memory, host_memory, nvme, engine, threads, compute_threads, isa, link,
                 disk, timeout, commit, commits, save, keep, eval, stage, pipeline, tensor,
                 secondary, tensorboard, csv, automatic, tokens_per_step] = options;
    const auto& [dynamic, initial, window, hysteresis, consecutive, minimum] = loss_scale;
    const auto& [lr, beta1, beta2, eps, weight_decay, mode, correction, optimizer, rounding] = adam;
    const auto& [kind, optimizer_lr, peak, from, warmup, logarithmic, total, decay_steps, min_lr,
                 warmup_ratio, cosine_ratio, last, cycle, range] = schedule;
    return std::tuple(
        std::tuple(micro_batch, accumulation, rounds, sum_order, context, clipping, compute, device,
                   deterministic, tf32, attention, decay, format, order, seed, steps, tile,
                   operator_tile, delayed_from, update, work_order, checkpointing, residency, home,
                   activations, sums),
        std::tuple(prefetch, device_index, generation, device_memory, host_memory, nvme, engine,
                   threads, compute_threads, isa, link, disk, timeout, commits, commit, save, keep,
                   eval, stage, pipeline, tensor, secondary, tensorboard, csv, automatic,
                   tokens_per_step),
        std::tuple(dynamic, initial, window, hysteresis, consecutive, minimum),
        std::tuple(lr, beta1, beta2, eps, weight_decay, mode, correction, optimizer, rounding),
        std::tuple(kind, optimizer_lr, peak, from, warmup, logarithmic, total, decay_steps, min_lr,
                   warmup_ratio, cosine_ratio, last, cycle, range));
  };
  const auto left = members(a);
  const auto right = members(b);
  EXPECT_TRUE(std::get<0>(left) == std::get<0>(right)) << to_config_json(a) << to_config_json(b);
  EXPECT_TRUE(std::get<1>(left) == std::get<1>(right)) << to_config_json(a) << to_config_json(b);
  EXPECT_TRUE(std::get<2>(left) == std::get<2>(right)) << to_config_json(a) << to_config_json(b);
  EXPECT_TRUE(std::get<3>(left) == std::get<3>(right)) << to_config_json(a) << to_config_json(b);
  EXPECT_TRUE(std::get<4>(left) == std::get<4>(right)) << to_config_json(a) << to_config_json(b);
}

/// Draws options, each member over all that the file can say.
class OptionsSource {
 public:
  explicit OptionsSource(std::uint64_t seed) : random_(seed) {}

  TrainOptions draw() {
    TrainOptions options;
    draw_mathematics(options);
    draw_placement(options);
    draw_delay(options);
    return options;
  }

 private:
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  std::uint32_t count(std::uint32_t low) { return low + static_cast<std::uint32_t>(below(1000)); }
  bool coin() { return below(2) == 1; }
  /// A double with a random mantissa: its decimal form must come back to the bit.
  double real(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  template <class Enum>
  Enum any() {
    return names_of<Enum>()[below(names_of<Enum>().size())].value;
  }

  void draw_mathematics(TrainOptions& options) {
    options.rounds = count(1);
    options.micro_batch = count(1);
    options.gradient_accumulation_steps = options.rounds * count(1);
    if (below(2) == 0) {
      options.sum_order = SumOrder::fixed;
      options.rounds = below(2) == 0 ? 1 : options.gradient_accumulation_steps;
    }
    options.context = count(0);
    options.gradient_clipping = coin() ? 0 : real(0, 10);
    options.compute = any<DType>();
    options.loss_scale = {.dynamic = coin(),
                          .initial = std::ldexp(1.0, static_cast<int>(below(40) + 10)),
                          .window = count(1),
                          .hysteresis = count(1),
                          .consecutive_hysteresis = coin(),
                          .minimum = real(0.1, 1000)};
    if (!options.loss_scale.dynamic) options.loss_scale.initial = real(0.1, 1e6);
    options.schedule = draw_schedule();
    options.adam = {.lr = options.schedule.optimizer_lr,
                    .beta1 = real(0, 1),
                    .beta2 = real(0, 1),
                    .eps = real(1e-12, 1e-3),
                    .weight_decay = real(0, 1),
                    .decay_mode = coin() ? cpu_adam::DecayMode::l2 : cpu_adam::DecayMode::decoupled,
                    .bias_correction = coin()};
    options.decay = any<DecayScope>();
    options.order = any<data::Order>();
    if (coin()) options.device = any<DeviceKind>();
    options.deterministic = coin();
    options.tf32 = coin();
    options.attention = any<AttentionChoice>();
    options.seed = random_();
    options.steps = random_() >> 32;
    options.tile_parameters = kLeafParameters * (1 + below(10000));
    options.operator_tile = below(3) * 100'000;
  }

  /// What the drawn kind reads; what it does not read stays as it is.
  ScheduleOptions draw_schedule() {
    const double lr = real(1e-6, 1);
    ScheduleOptions schedule{.kind = any<ScheduleKind>(), .optimizer_lr = lr, .peak_lr = lr};
    const bool deepspeed = schedule.kind >= ScheduleKind::warmup_lr;
    if (deepspeed) schedule.last_batch_iteration = static_cast<std::int64_t>(below(100)) - 1;
    if (schedule.kind == ScheduleKind::one_cycle) {
      schedule.one_cycle = {.min_lr = real(0, 1),
                            .max_lr = real(0, 1),
                            .decay_lr_rate = real(0, 1),
                            .first_steps = count(1),
                            .second_steps = count(0),
                            .first_stairs = count(0),
                            .second_stairs = count(0),
                            .decay_step_size = count(0),
                            .cycle_momentum = coin(),
                            .min_momentum = real(0, 1),
                            .max_momentum = real(0, 1),
                            .decay_momentum_rate = real(0, 1)};
      return schedule;
    }
    if (schedule.kind == ScheduleKind::lr_range_test) {
      schedule.range_test = {.min_lr = real(0, 1),
                             .step_size = count(1),
                             .step_rate = real(0, 9),
                             .staircase = coin()};
      return schedule;
    }
    schedule.warmup_steps = 2 + random_() / 2;
    schedule.warmup_logarithmic = coin();
    if (decays(schedule.kind)) schedule.total_steps = random_();
    if (schedule.kind == ScheduleKind::warmup_cosine_lr) {
      schedule.warmup_min_ratio = real(0, 1);
      schedule.cosine_min_ratio = real(0, 1);
      return schedule;
    }
    schedule.warmup_from = real(0, 1e-6);
    if (deepspeed) schedule.peak_lr = coin() ? lr : real(1e-6, 1);
    if (!deepspeed) schedule.minimum_lr = real(0, 1e-6);
    if (schedule.kind == ScheduleKind::wsd) schedule.decay_steps = random_();
    return schedule;
  }

  void draw_tensor_group(TrainOptions& options) {
    options.tensor.ranks = 1 + static_cast<std::uint32_t>(below(4));
    if (options.tensor.ranks == 1) return;
    options.tensor.sequence = coin();
    options.work_order = WorkOrder::layer_major;
    options.operator_tile = 0;
    options.secondary_ranks = 1;
  }
  /// Delayed updates exclude much else.
  void draw_delay(TrainOptions& options) {
    options.delayed_from = count(1);
    if (options.update != UpdateMode::delayed) return;
    options.pipeline = {};
    options.tensor = {};
    options.operator_tile = 0;
    options.nvme.clear();
    options.state_home = StateHome::host;
  }
  void draw_placement(TrainOptions& options) {
    options.update = any<UpdateMode>();
    options.work_order = any<WorkOrder>();
    options.checkpointing = any<Checkpointing>();
    options.activations = any<StateHome>();
    options.gradient_sums = any<SumsHome>();
    options.residency = any<Residency>();
    options.state_home = any<StateHome>();
    options.prefetch = count(0);
    if (coin()) options.device_memory = Bytes{random_()};
    if (coin()) options.host_memory = Bytes{random_()};
    for (std::uint64_t i = below(3); i > 0; --i)
      options.nvme.emplace_back("/n \"\u00e9\\" + std::to_string(i));
    options.io_engine = any<nvme_swap::EngineKind>();
    options.threads = count(0);
    options.compute_threads = count(0);
    if (coin()) options.isa = any<cpu_adam::Isa>();
    if (coin()) options.host_link_gbps = real(0.1, 100);
    if (coin()) options.disk_gbps = real(0.1, 100);
    if (coin()) options.timeout = count(1);
    options.commit_every = random_();
    options.save_every = random_();
    options.keep = count(1);
    options.eval_every = random_();
    if (coin()) options.tensorboard = {coin(), "/t", "a job"};
    if (coin()) options.csv_monitor = {coin(), "", "another"};
    if (offloads(options.checkpointing)) options.operator_tile = 0;
    options.zero_stage = static_cast<std::uint32_t>(below(4));
    options.secondary_ranks = 1 + static_cast<std::uint32_t>(below(8));
    draw_tensor_group(options);
    options.pipeline.schedule = any<PipelineSchedule>();
    if (options.pipeline.schedule == PipelineSchedule::interleaved) {
      options.pipeline.chunks = 1 + static_cast<std::uint32_t>(below(4));
      return;
    }
    options.pipeline.stages = 1 + static_cast<std::uint32_t>(below(4));
    if (options.gradient_accumulation_steps < options.pipeline.stages ||
        options.pipeline.schedule == PipelineSchedule::pipedream ||
        (options.pipeline.stages == 1 && has_stale_weights(options.pipeline.schedule))) {
      options.pipeline.schedule = PipelineSchedule::naive;
    }
    if (options.pipeline.stages == 1) return;
    options.work_order = WorkOrder::layer_major;
    if (has_stale_weights(options.pipeline.schedule)) {
      options.activations = StateHome::automatic;
      const bool seldom = options.gradient_clipping == 0 && options.compute != DType::fp16;
      options.pipeline.meet_every = static_cast<std::uint32_t>(below(seldom ? 9 : 2));
    }
    options.operator_tile = 0;
    options.secondary_ranks = 1;
    if (coin()) options.rounds = 1;
    if (options.rounds > 1) options.rounds = options.gradient_accumulation_steps;
  }

  std::mt19937_64 random_;
};

TEST(ConfigRoundTrip, AnyValidOptionsComeBackEqual) {
  const char* const given = std::getenv("SPILLWAY_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::stoull(given) : std::random_device{}();
  std::cout << "SPILLWAY_TEST_SEED=" << seed << '\n';
  OptionsSource source(seed);
  for (int i = 0; i < 500 && !testing::Test::HasFailure(); ++i) {
    const TrainOptions options = source.draw();
    ASSERT_NO_THROW(validate(options));
    const ParsedConfig parsed = parse_train_config(to_config_json(options), "config.json");
    for (const std::string& note : parsed.notes) {
      EXPECT_THAT(note, HasSubstr("scheduler.params.")) << "what the schedule takes from elsewhere";
    }
    expect_equal(options, parsed.options);
    EXPECT_EQ(recorded_options(options), recorded_options(parsed.options));
  }
}

TEST(ConfigRoundTrip, ExamplesAndDefaultsComeBackEqual) {
  expect_equal(TrainOptions{}, test::options_of(to_config_json(TrainOptions{})));
  for (const char* const name :
       {"zero2_offload_fp16.json", "trainer_zero3_numbers.json", "infinity_nvme.json",
        "tutorial_stage0.json", "chat_bf16_monitors.json"}) {
    const TrainOptions options = test::options_of(test::example(name));
    expect_equal(options, test::options_of(to_config_json(options)));
  }
}

TEST(ConfigRoundTrip, RefusesAPathThatJsonCannotHold) {
  TrainOptions options;
  options.nvme = {"/\xff"};
  EXPECT_THROW(static_cast<void>(to_config_json(options)), Error);
}

TEST(StateFormat, IsSplitByDefaultWhereParametersAreBf16) {
  EXPECT_EQ(test::options_of(R"({"bf16": {"enabled": true}})").state_format, StateFormat::split);
  EXPECT_EQ(test::options_of(R"({"spillway": {"compute": "bf16"}})").state_format,
            StateFormat::split);
  EXPECT_EQ(test::options_of(R"({"fp16": {"enabled": true}})").state_format, StateFormat::fp32);
  EXPECT_EQ(test::options_of(R"({"bf16": {"enabled": true}, "spillway": {"state_format": "fp32"}})")
                .state_format,
            StateFormat::fp32);
}

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("paht", "path"), 1U);
  EXPECT_EQ(edit_distance("abcd", "badc"), 2U);
}

}  // namespace
}  // namespace spillway::config::config_round_trip_test
