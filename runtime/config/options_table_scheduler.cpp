#include "runtime/config/detail/option_builders.hpp"
#include "runtime/config/detail/schedule_deepspeed.hpp"
#include "runtime/config/schedule.hpp"

namespace spillway::config::detail {
namespace {

using nlohmann::json;
using enum ScheduleKind;
using Schedule = ScheduleOptions;

template <ScheduleKind... Kinds>
bool is(const TrainOptions& options) {
  return ((options.schedule.kind == Kinds) || ...);
}
bool is_own(const TrainOptions& options) { return !is_deepspeed(options.schedule.kind); }
bool is_theirs(const TrainOptions& options) { return is_deepspeed(options.schedule.kind); }
bool warms_up(const TrainOptions& options) { return !is<one_cycle, lr_range_test>(options); }
bool warms_up_from_a_rate(const TrainOptions& options) {
  return warms_up(options) && !is<warmup_cosine_lr>(options);
}
bool ends(const TrainOptions& options) { return decays(options.schedule.kind); }

/// What the file leaves out has the defaults of DeepSpeed's class where the type is one of its.
void read_type(ConfigFile& file, const Option& self, TrainOptions& options) {
  Schedule& schedule = options.schedule;
  const json* const type = file.value(self, options);
  if (type == nullptr && !file.has("scheduler") && !file.has("optimizer")) {
    file.note("scheduler",
              "absent: a constant rate; HF Trainer's falls in a line to 0, as that of type Linear");
  }
  if (type == nullptr) return;
  schedule.kind = from_json<ScheduleKind>(*type);
  if (!is<warmup_lr, warmup_decay_lr, warmup_cosine_lr>(options)) return;
  schedule.warmup_logarithmic = true;
  schedule.warmup_steps = 1000;
}

void read_warmup_steps(ConfigFile& file, const Option& self, TrainOptions& options) {
  std::uint64_t& steps = options.schedule.warmup_steps;
  if (const json* const given = file.value(self, options)) steps = given->get<std::uint64_t>();
  if (file.is_auto(self)) steps = 0;
  if (!is_theirs(options) || steps >= 2) return;
  if (steps == 0) {
    return file.note(self.path(),
                     "0: there is no warm-up, which DeepSpeed refuses, or makes one "
                     "of 2 steps");
  }
  file.note(self.path(), "2 is the least that DeepSpeed's schedules warm up for");
  steps = 2;
}

/// WarmupLR and WarmupDecayLR rise to a rate of their own.
void read_warmup_max_lr(ConfigFile& file, const Option& self, TrainOptions& options) {
  Schedule& schedule = options.schedule;
  if (const json* const highest = file.value(self, options)) {
    schedule.peak_lr = highest->get<double>();
  } else if (!file.has(self.path()) && is<warmup_decay_lr>(options)) {
    schedule.peak_lr = 0.001;
    file.note(self.path(), "absent: 0.001, as in DeepSpeed");
  }
  if (schedule.peak_lr != schedule.optimizer_lr) {
    file.note(self.path(), fmt::format("{} takes the place of optimizer.params.lr {}",
                                       schedule.peak_lr, schedule.optimizer_lr));
  }
}

/// The scheduler's step before the run's first, which DeepSpeed counts from -1.
void read_last_iteration(ConfigFile& file, const Option& self, TrainOptions& options) {
  read_member<&TrainOptions::schedule, &Schedule::last_batch_iteration>(file, self, options);
  if (options.schedule.last_batch_iteration < 0) return;
  file.note(self.path(), fmt::format("the first update has optimizer.params.lr {}, as in DeepSpeed",
                                     options.schedule.optimizer_lr));
}

void read_min_ratio(ConfigFile& file, const Option& self, TrainOptions& options) {
  const json* const ratio = file.value(self, options);
  if (ratio == nullptr) return;
  if (file.has("scheduler.params.min_lr")) file.refuse_value(self, "either min_lr or min_ratio");
  options.schedule.minimum_lr = ratio->get<double>() * options.schedule.peak_lr;
}

void read_cycle_momentum(ConfigFile& file, const Option& self, TrainOptions& options) {
  read_member<&TrainOptions::schedule, &Schedule::one_cycle, &OneCycleOptions::cycle_momentum>(
      file, self, options);
  const bool betas = options.adam.optimizer == cpu_adam::Optimizer::adam ||
                     options.adam.optimizer == cpu_adam::Optimizer::lion;
  if (!options.schedule.one_cycle.cycle_momentum || !betas) return;
  file.note(self.path(), "takes the place of optimizer.params.betas; the second is 0.99");
}

/// Reads the length of the rising half, which is that of the falling one too where that is absent.
template <auto First, auto Second>
void read_both_halves(ConfigFile& file, const Option& self, TrainOptions& options) {
  read_member<&TrainOptions::schedule, &Schedule::one_cycle, First>(file, self, options);
  OneCycleOptions& cycle = options.schedule.one_cycle;
  cycle.*Second = cycle.*First;
}

Option alike(Option::Condition applies) {
  return {.section = "scheduler.params", .applies = applies, .automatic = automatic::kDefault};
}

void add_warmup(std::vector<Option>& table) {
  Rows warmup(table, alike(warms_up));
  Option& steps = warmup.member<&TrainOptions::schedule, &Schedule::warmup_steps>(
      {"warmup_num_steps", "The warm-up takes this many steps.", "1000; Spillway's own: 0"});
  steps.read = read_warmup_steps;
  steps.automatic = "0";
  warmup.own(
      {"warmup_type",
       "During the warm-up the rate rises with the step's number or with its logarithm.",
       "log; Spillway's own: linear"},
      {.kind = Kind::name, .names = {"log", "linear"}},
      [](ConfigFile& file, const Option& self, TrainOptions& options) {
        const json* const type = file.value(self, options);
        if (type != nullptr) options.schedule.warmup_logarithmic = *type == "log";
      },
      [](const Option&, const TrainOptions& options) {
        return json(options.schedule.warmup_logarithmic ? "log" : "linear");
      });
  Rows(table, alike(warms_up_from_a_rate))
      .member<&TrainOptions::schedule, &Schedule::warmup_from>(
          {"warmup_min_lr", "The warm-up starts from this rate."}, kRate);
  Option& highest = Rows(table, alike(is<warmup_lr, warmup_decay_lr>))
                        .member<&TrainOptions::schedule, &Schedule::peak_lr>(
                            {"warmup_max_lr", "WarmupLR and WarmupDecayLR rise to this rate.",
                             "`lr` of the optimizer; WarmupDecayLR: 0.001"},
                            kRate);
  highest.read = read_warmup_max_lr;
  highest.automatic = "optimizer.params.lr";
  Rows cosine(table, alike(is<warmup_cosine_lr>));
  cosine.member<&TrainOptions::schedule, &Schedule::warmup_min_ratio>(
      {"warmup_min_ratio", "WarmupCosineLR starts from this part of `lr`."});
  cosine.member<&TrainOptions::schedule, &Schedule::cosine_min_ratio>(
      {"cos_min_ratio", "WarmupCosineLR ends at this part of `lr`."});
  Rows(table, alike(ends))
      .member<&TrainOptions::schedule, &Schedule::total_steps>(
          {"total_num_steps", "The rate stops falling at this step.", "the steps of the run"})
      .automatic = "the steps of the run";
  Rows(table, alike(is_theirs))
      .member<&TrainOptions::schedule, &Schedule::last_batch_iteration>(
          {"last_batch_iteration",
           "A schedule of DeepSpeed continues behind this step of its own; -1 is its start."},
          whole<std::int64_t>(-1, 0x1p52))
      .read = read_last_iteration;
  Rows own(table, {.section = "scheduler.params", .applies = is_own});
  own.member<&TrainOptions::schedule, &Schedule::minimum_lr>(
      {"min_lr", "Linear, Cosine and WSD end at this rate."});
  own.own({"min_ratio", "This is another way to write `min_lr`: as a part of `lr`.", "0"}, kNumber,
          read_min_ratio);
  Rows(table, alike(is<wsd>))
      .member<&TrainOptions::schedule, &Schedule::decay_steps>(
          {"decay_num_steps", "WSD lets the rate fall during this many steps at its end.",
           "a tenth of `total_num_steps`"})
      .automatic = "a tenth of total_num_steps";
}

void add_one_cycle(std::vector<Option>& table) {
  using Cycle = OneCycleOptions;
  constexpr auto kCycle = &Schedule::one_cycle;
  constexpr auto kSchedule = &TrainOptions::schedule;
  Rows cycle(table, alike(is<one_cycle>));
  Option& lowest = cycle.member<kSchedule, kCycle, &Cycle::min_lr>(
      {"cycle_min_lr", "OneCycle starts from this rate.", "none: needed"}, kRate);
  lowest.missing = "OneCycle needs it";
  lowest.automatic = {};
  Option& highest = cycle.member<kSchedule, kCycle, &Cycle::max_lr>(
      {"cycle_max_lr", "OneCycle rises to this rate.", "none: needed"}, kRate);
  highest.missing = "OneCycle needs it";
  highest.automatic = {};
  cycle.member<kSchedule, kCycle, &Cycle::decay_lr_rate>(
      {"decay_lr_rate", "After n decays the first rate is divided by 1 plus n times this number."});
  cycle
      .member<kSchedule, kCycle, &Cycle::first_steps>(
          {"cycle_first_step_size", "OneCycle rises for this many steps."}, whole<std::uint64_t>(1))
      .read = read_both_halves<&Cycle::first_steps, &Cycle::second_steps>;
  cycle.member<kSchedule, kCycle, &Cycle::second_steps>({"cycle_second_step_size",
                                                         "OneCycle falls for this many steps.",
                                                         "as `cycle_first_step_size`"});
  cycle
      .member<kSchedule, kCycle, &Cycle::first_stairs>(
          {"cycle_first_stair_count",
           "OneCycle rises in this many stairs; with 0 it rises in a line.", "0"})
      .read = read_both_halves<&Cycle::first_stairs, &Cycle::second_stairs>;
  cycle.member<kSchedule, kCycle, &Cycle::second_stairs>(
      {"cycle_second_stair_count", "OneCycle falls in this many stairs; with 0 it falls in a line.",
       "as `cycle_first_stair_count`"});
  cycle.member<kSchedule, kCycle, &Cycle::decay_step_size>(
      {"decay_step_size",
       "After the cycle, one decay takes this many steps; with 0 nothing decays."});
  cycle
      .member<kSchedule, kCycle, &Cycle::cycle_momentum>(
          {"cycle_momentum",
           "OneCycle sets the optimizer's `betas` too, the second of them to 0.99."})
      .read = read_cycle_momentum;
  Domain momentum = kRate;
  momentum.high = 1;
  momentum.below = true;
  cycle.member<kSchedule, kCycle, &Cycle::min_momentum>(
      {"cycle_min_mom", "OneCycle's momentum falls to this number while the rate rises."},
      momentum);
  cycle.member<kSchedule, kCycle, &Cycle::max_momentum>(
      {"cycle_max_mom", "OneCycle's momentum starts from this number."}, momentum);
  cycle.member<kSchedule, kCycle, &Cycle::decay_momentum_rate>(
      {"decay_mom_rate",
       "After n decays the largest momentum is multiplied by 1 plus n times this number."});
}

void add_range_test(std::vector<Option>& table) {
  using Test = RangeTestOptions;
  constexpr auto kTest = &Schedule::range_test;
  constexpr auto kSchedule = &TrainOptions::schedule;
  Rows test(table, alike(is<lr_range_test>));
  test.member<kSchedule, kTest, &Test::min_lr>(
      {"lr_range_test_min_lr", "LRRangeTest starts from this rate."}, kRate);
  test.member<kSchedule, kTest, &Test::step_size>(
      {"lr_range_test_step_size",
       "LRRangeTest raises the rate by one step rate within this many steps."},
      whole<std::uint64_t>(1));
  test.member<kSchedule, kTest, &Test::step_rate>(
      {"lr_range_test_step_rate",
       "LRRangeTest raises the rate each time by this multiple of its first rate."});
  test.member<kSchedule, kTest, &Test::staircase>(
      {"lr_range_test_staircase", "LRRangeTest rises in stairs, not in a line."});
}

}  // namespace

void add_scheduler(std::vector<Option>& table) {
  Option& type = Rows(table, {.section = "scheduler"})
                     .member<&TrainOptions::schedule, &Schedule::kind>(
                         {"type", "[user-guide.md](user-guide.md) says what each schedule is.",
                          "a constant rate"});
  type.read = read_type;
  type.missing = "write a type, or remove the section for a constant rate";
  add_warmup(table);
  add_one_cycle(table);
  add_range_test(table);
}

}  // namespace spillway::config::detail
