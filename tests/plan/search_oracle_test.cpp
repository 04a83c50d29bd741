// The search for the fastest placement against every placement of small models: which cut each
// block has and how many slots each pool, priced by the simulator alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/plan/placement/memory_sums.hpp"
#include "runtime/plan/predict/price.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/search/fastest.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/choose_helpers.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan::search_oracle_test {
namespace {

/// A model and a machine on which some of it fits.
struct Instance {
  Workload workload;
  MachineProfile machine;
  Budgets budgets = kUnlimited;
};

/// Numbers of buffers that a search may give up.
struct Slots {
  std::uint32_t parameters, gradients, boundaries, saved, state;
};

BlockShape random_block(RandomCases& cases, bool layer) {
  const std::uint64_t padded = cases.between(1, 8) * kLeafParameters;
  const double flops = static_cast<double>(cases.between(5, 20)) * static_cast<double>(padded);
  return {.name = layer ? "layer" : "end",
          .parameters = ElementCount{padded},
          .padded_parameters = ElementCount{padded},
          .forward_flops = flops,
          .backward_flops = 2 * flops,
          .saved_bytes = Bytes{layer ? cases.between(5'000, 60'000) : 0}};
}

Workload random_workload(RandomCases& cases, std::uint32_t layers, std::uint32_t rounds) {
  Workload w;
  w.rounds = rounds;
  w.micro_batches = static_cast<std::uint32_t>(cases.between(1, 3));
  w.compute = cases.maybe() ? DType::bf16 : DType::fp32;
  w.blocks.push_back(random_block(cases, false));
  w.blocks.insert(w.blocks.end(), layers, random_block(cases, true));
  w.blocks.push_back(random_block(cases, false));
  w.boundary_bytes = Bytes{cases.between(1'000, 20'000)};
  w.workspace_bytes = Bytes{cases.between(1'000, 20'000)};
  w.token_bytes = Bytes{64};
  w.tokens = 8;
  return w;
}

MachineProfile random_machine(RandomCases& cases) {
  const auto rate = [&](std::uint64_t low, std::uint64_t high) {
    return static_cast<double>(cases.between(low, high)) * 1e6;
  };
  MachineProfile m;
  m.gpu_flops = 1e9;
  m.h2d = rate(20, 2000);
  m.d2h = m.h2d;
  if (cases.maybe()) m.h2d_d2h_combined = 1.5 * m.h2d;
  m.update = rate(50, 5000);
  if (cases.between(0, 4) > 0) m.gpu_update = rate(1000, 20'000);  // else it does not update
  if (cases.maybe()) m.op_overhead_seconds = 1e-6;
  m.net = 1e9;
  m.nvme_read = rate(10, 500);
  m.nvme_write = rate(10, 500);
  return m;
}

/// With one round two layers, with several one, and one where the disk is used too: so many
/// placements can be tried.
Instance random_instance(RandomCases& cases) {
  const std::uint64_t kind = cases.between(0, 4);
  const bool disk = kind == 0;
  Instance each{.workload = random_workload(cases, kind > 2 ? 2 : 1, kind > 0 && kind < 3 ? 2 : 1),
                .machine = random_machine(cases)};
  const Workload& w = each.workload;
  const Bytes least = shortage_with_nothing(w, {}, Tier::device).needed;
  const Bytes all = needed(w, chosen(w, kUnlimited), Tier::device);
  each.budgets.device = least + (all - least) * cases.between(0, 110) / 100U;
  if (!disk) return each;
  Budgets nothing = each.budgets;
  nothing.host = Bytes{};
  const auto shortage = std::get<Shortage>(choose_placement(w, nothing, {}));
  const Bytes most = needed(w, chosen(w, each.budgets), Tier::host);
  each.budgets.host = std::max(shortage.needed, shortage.needed / 100U * cases.between(100, 300));
  each.budgets.host = std::min(each.budgets.host, std::max(most, shortage.needed));
  return each;
}

using Homes = std::vector<Tier>;

/// The ways to place what a block updates.
std::vector<BlockCut> updates(const Instance& q, const Homes& elsewhere) {
  std::vector<BlockCut> list;
  if (q.machine.gpu_update > 0) {
    list.push_back({.parameters = Tier::device, .gradients = Tier::device, .state = Tier::device});
  }
  for (const Tier parameters : {Tier::host, Tier::device}) {
    for (const Tier gradients : {Tier::host, Tier::device}) {
      if (gradients == Tier::device && q.workload.rounds == 1) continue;
      for (const Tier state : elsewhere) list.push_back({parameters, gradients, state});
    }
  }
  return list;
}

/// All that a block may do with its data.
std::vector<BlockCut> cuts_of(const Instance& q, std::uint32_t block, bool disk) {
  const auto blocks = static_cast<std::uint32_t>(q.workload.blocks.size());
  const bool makes = block + 1 < blocks, layer = block > 0 && makes;
  const Homes elsewhere = disk ? Homes{Tier::host, Tier::nvme} : Homes{Tier::host};
  std::vector<BlockCut> list;
  for (BlockCut cut : updates(q, elsewhere)) {
    for (const Tier output : {Tier::device, Tier::host, Tier::nvme}) {
      // What the head reads alone has no home elsewhere, and no second one.
      const bool away = output == Tier::host || (disk && block + 2 < blocks);
      if (output != Tier::device && !(makes && away)) continue;
      cut.output = output;
      cut.saved.reset();
      list.push_back(cut);
      for (const Tier saved : {Tier::device, Tier::host, Tier::nvme}) {
        if (!layer || (saved == Tier::nvme && !disk)) continue;
        cut.saved = saved;
        list.push_back(cut);
      }
    }
  }
  return list;
}

std::vector<Slots> slots_of(const Workload& w, const Placement& p) {
  const bool away = p.any_output(Tier::host) || p.any_output(Tier::nvme);
  const bool saved = p.any_saved(Tier::host) || p.any_saved(Tier::nvme);
  const std::uint32_t state = p.any_state(Tier::nvme) ? 4 : 1;
  std::vector<Slots> list;
  for (const std::uint32_t parameters : {2U, 1U}) {
    for (const std::uint32_t gradients : {2U, 1U}) {
      for (std::uint32_t boundaries = away ? 4 : 0;; --boundaries) {
        for (std::uint32_t of_saved = saved ? 2 * w.micro_batches : 2; of_saved > 1; --of_saved) {
          for (std::uint32_t of_state = state; of_state > 0; --of_state) {
            list.push_back({parameters, gradients, boundaries, saved ? of_saved : 0, of_state});
          }
        }
        if (boundaries < 2) break;
      }
    }
  }
  return list;
}

bool is_no_more(const Slots& a, const Slots& b) {
  return a.parameters <= b.parameters && a.gradients <= b.gradients &&
         a.boundaries <= b.boundaries && a.saved <= b.saved && a.state <= b.state;
}

void take(Placement& placement, const Slots& slots) {
  placement.parameter_slots = slots.parameters;
  placement.gradient_slots = slots.gradients;
  placement.boundary_slots = slots.boundaries;
  placement.boundary_staging = placement.any_output(Tier::nvme) ? slots.boundaries : 0;
  placement.saved_slots = slots.saved;
  placement.saved_staging = placement.any_saved(Tier::nvme) ? 2 : 0;
  placement.state_slots = slots.state;
}

/// The shortest step of all placements.
class Oracle {
 public:
  Oracle(const Instance& instance, bool disk)
      : q_(instance), sizes_(q_.workload, StateFormat::fp32, largest_block(q_.workload), true) {
    best_.tile_parameters = sizes_.tile_parameters();
    best_.blocks.resize(q_.workload.blocks.size());
    for (std::uint32_t b = 0; b < best_.blocks.size(); ++b) {
      for (const BlockCut& cut : cuts_of(q_, b, disk)) {
        best_.blocks[b] = cut;
        cuts_.at(b).emplace_back(cut, work_of(q_.workload, best_, b));
      }
    }
    add_from(0, {});
    std::ranges::sort(all_, {}, &std::pair<double, Indices>::first);
    Placement placement = best_;
    for (const auto& [bound, indices] : all_) {
      if (bound >= seconds_) break;  // nor is any that follows shorter
      for (std::uint32_t b = 0; b < placement.blocks.size(); ++b) {
        placement.blocks[b] = cuts_.at(b)[indices.at(b)].first;
      }
      try_slots(placement, bound);
    }
  }
  [[nodiscard]] double seconds() const { return seconds_; }
  [[nodiscard]] const Placement& placement() const { return best_; }
  [[nodiscard]] int simulated() const { return simulated_; }

 private:
  static constexpr std::uint32_t kMostBlocks = 4;
  using Indices = std::array<std::uint8_t, kMostBlocks>;

  /// Adds the placements that begin with the cuts of the blocks before this one.
  void add_from(std::uint32_t block, const LaneWork& before, const Indices& indices = {}) {
    if (block == best_.blocks.size()) {
      all_.emplace_back(bound_of(before), indices);
      return;
    }
    for (std::size_t i = 0; i < cuts_.at(block).size(); ++i) {
      LaneWork work = before;
      work += cuts_.at(block)[i].second;
      Indices with = indices;
      with.at(block) = static_cast<std::uint8_t>(i);
      add_from(block + 1, work, with);
    }
  }

  /// Seconds of the busiest lane, of those that never stand still for others' sake.
  [[nodiscard]] double bound_of(const LaneWork& work) const {
    const MachineProfile& m = q_.machine;
    const double moved = m.gpu_update > 0 ? work.gpu_bytes / m.gpu_update : 0;
    return std::max({work.flops / m.gpu_flops + moved, work.up / m.h2d, work.down / m.d2h,
                     work.cpu / m.update}) *
           (1 - 1e-9);
  }

  /// Tries the most slots that fit; fewer of each only cost time.
  void try_slots(Placement& placement, double bound) {
    const MemorySums sums(sizes_, placement);
    if (sums.share_of(Tier::device) > q_.budgets.device) return;
    std::vector<Slots> fitting;
    for (const Slots& slots : slots_of(q_.workload, placement)) {
      if (std::ranges::any_of(fitting, [&](const Slots& f) { return is_no_more(slots, f); })) {
        continue;
      }
      take(placement, slots);
      if (memory_total(placement, sums, Tier::device) > q_.budgets.device) continue;
      if (memory_total(placement, sums, Tier::host) > q_.budgets.host) continue;
      fitting.push_back(slots);
      ++simulated_;
      const StepPlan plan = build_training_step(q_.workload, placement);
      const auto prediction = simulate_within(plan, q_.machine, seconds_);
      if (!prediction || prediction->step_seconds >= seconds_) continue;
      EXPECT_LE(bound, prediction->step_seconds);
      seconds_ = prediction->step_seconds;
      best_ = placement;
    }
  }

  const Instance& q_;
  const PoolSizes sizes_;
  std::array<std::vector<std::pair<BlockCut, LaneWork>>, kMostBlocks> cuts_;
  std::vector<std::pair<double, Indices>> all_;  ///< with their bounds
  double seconds_ = std::numeric_limits<double>::infinity();
  Placement best_;
  int simulated_ = 0;
};

void print(const Placement& p) {
  std::printf("  slots %u %u %u %u:", p.parameter_slots, p.gradient_slots, p.boundary_slots,
              p.saved_slots);
  constexpr std::array kLetters{'d', 'h', 'n'};
  const auto letter = [&](Tier tier) { return kLetters.at(static_cast<std::size_t>(tier)); };
  for (const BlockCut& c : p.blocks) {
    std::printf(" %c%c%c%c%c", letter(c.parameters), letter(c.gradients), letter(c.state),
                c.saved ? letter(*c.saved) : '-', letter(c.output));
  }
  std::printf("\n");
}

/// Most gaps are none. The largest that are known need other cuts of three blocks at once, of which
/// no two help by themselves.
TEST(SearchOracle, NearlyEveryChoiceIsWithinThreePercentOfTheBestPlacement) {
  RandomCases cases(property_seed());
  double most = 0, sum = 0;
  int above = 0, passed = 0;
  constexpr int kInstances = 500;
  std::size_t by_search = 0, by_oracle = 0;
  for (int i = 0; i < kInstances; ++i) {
    const Instance q = random_instance(cases);
    const Placement first = chosen(q.workload, q.budgets);
    const PlannedStep step = fastest_placement(q.workload, q.budgets, {}, q.machine, first);
    const Oracle oracle(q, first.uses_disk());
    if (oracle.seconds() == std::numeric_limits<double>::infinity()) {
      EXPECT_EQ(step.placement, first);  // only an update that the device cannot run fits
      continue;
    }
    const double gap = step.prediction.step_seconds / oracle.seconds() - 1;
    EXPECT_FALSE(q.machine.gpu_update == 0 && step.placement.any_state(Tier::device)) << i;
    by_search += step.simulated;
    by_oracle += static_cast<std::size_t>(oracle.simulated());
    if (gap > 0.03 || gap < -1e-9) {
      ++(gap > 0 ? above : passed);
      std::printf("%d: gap %.3f\n", i, gap);
      print(first);
      print(step.placement);
      print(oracle.placement());
    }
    most = std::max(most, gap);
    sum += gap;
  }
  std::printf(
      "gap to the best of all: %.4f at most, %.5f on average, %d above, %d missed; %zu and "
      "%zu simulated\n",
      most, sum / kInstances, above, passed, by_search, by_oracle);
  EXPECT_LE(most, 0.35);
  EXPECT_LE(sum / kInstances, 0.005);
  EXPECT_LE(above, kInstances * 3 / 100);
  EXPECT_EQ(passed, 0);
}

}  // namespace
}  // namespace spillway::plan::search_oracle_test
