// The choice of a placement against all placements of a small model: of those that fit, it is the
// one that gives up least, by the order of preference that choose.hpp states.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tests/plan/choose_helpers.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan::choice_oracle_test {
namespace {

/// What a placement gives up, in the order of `loss_of`: first what is given up last.
using Loss = std::array<int, 14>;
constexpr std::size_t kHostSlots = 5;

struct Candidate {
  Placement placement;
  Bytes device;
  Bytes host;
  Loss loss;
};

bool is_away(const BlockCut& cut) { return cut.output != Tier::device; }
bool is_on_disk(const BlockCut& cut) { return cut.output == Tier::nvme; }

template <class Holds>
int count(const Placement& p, const Holds& holds) {
  return static_cast<int>(std::ranges::count_if(p.blocks, holds));
}
/// Returns a binary number of the blocks for which it holds; the last one's digit is the highest.
template <class Holds>
int number(const Placement& p, const Holds& holds) {
  int sum = 0;
  for (std::size_t b = 0; b < p.blocks.size(); ++b) sum += holds(p.blocks[b]) ? 1 << b : 0;
  return sum;
}

/// All placements for a request: outputs leave the device from the first block on and state from
/// the last, and any set of blocks may be kept, resident or summed.
class Candidates {
 public:
  Candidates(const Workload& workload, const PlacementRequest& request)
      : w_(workload),
        request_(request),
        blocks_(static_cast<std::uint32_t>(workload.blocks.size())),
        parameter_slots_(*request.prefetch + 1) {
    Placement p = uniform_placement(workload, {});
    for (std::uint32_t away = 0; away < blocks_; ++away) {
      // The last output goes to the head alone: the disk spares it nothing.
      for (std::uint32_t on_disk = 0; on_disk <= std::min(away, blocks_ - 2); ++on_disk) {
        for (std::uint32_t b = 0; b < blocks_; ++b) {
          p.blocks[b].output = b < on_disk ? Tier::nvme : b < away ? Tier::host : Tier::device;
        }
        for (p.boundary_slots = away > 0 ? 2 * parameter_slots_ : 0;; --p.boundary_slots) {
          p.boundary_staging = on_disk > 0 ? p.boundary_slots : 0;
          add_states(p);
          if (away + 1 < blocks_ || p.boundary_slots == 1) break;
        }
      }
    }
  }

  [[nodiscard]] const std::vector<Candidate>& all() const { return all_; }

 private:
  void add_states(Placement p) {
    const Placement on_host = p;
    for (BlockCut& cut : p.blocks) {
      cut.parameters = cut.gradients = cut.state = Tier::device;
      cut.saved = Tier::device;
    }
    p.gradient_slots = 1;
    p.state_slots = 4;
    add(p, p);
    for (std::uint32_t on_disk = 0; on_disk <= blocks_; ++on_disk) {
      p = on_host;
      for (std::uint32_t b = blocks_ - on_disk; b < blocks_; ++b) p.blocks[b].state = Tier::nvme;
      p.state_slots = on_disk > 0 ? 4 : 1;
      // The slots of the device are given up in this order.
      p.parameter_slots = parameter_slots_;
      for (add_offloaded(p); p.parameter_slots > (w_.tied_head ? 2 : 1); add_offloaded(p)) {
        --p.parameter_slots;
      }
      p.gradient_slots = 1;
      add_offloaded(p);
      if (!w_.tied_head) continue;
      p.parameter_slots = 1;
      p.blocks.back().parameters = Tier::device;
      add_offloaded(p);
    }
  }
  /// Adds every number of blocks, from the first, whose saved activations leave the device, which
  /// they do once no slot of it is left to give up or none has been.
  void add_offloaded(Placement p) {
    add_sets(p);
    const bool none = p.gradient_slots == 2 && p.parameter_slots == parameter_slots_;
    const bool all = p.gradient_slots == 1 && p.parameter_slots == 1;
    if (!request_.offload || !(none || all)) return;
    p.saved_slots = 2;
    p.saved_staging = request_.offload_to == Tier::nvme ? 2 : 0;
    for (std::uint32_t b = 0; b < blocks_; ++b) {
      if (w_.blocks[b].saved_bytes == Bytes{}) continue;
      p.blocks[b].saved = request_.offload_to;
      add_sets(p);
    }
  }
  /// Adds every choice of blocks that are on the device beside what `least` has there.
  void add_sets(Placement least) {
    const std::uint32_t sets = 1U << blocks_;
    for (BlockCut& cut : least.blocks) {
      if (request_.keep == true) cut.saved = cut.saved.value_or(Tier::device);
    }
    for (std::uint32_t kept = 0; kept < (request_.keep == true ? 1 : sets); ++kept) {
      for (std::uint32_t resident = 0; resident < sets; ++resident) {
        for (std::uint32_t summed = 0; summed < (w_.rounds > 1 ? sets : 1); ++summed) {
          Placement p = least;
          bool saves = true;
          for (std::uint32_t b = 0; b < blocks_; ++b) {
            if ((resident >> b & 1U) != 0) p.blocks[b].parameters = Tier::device;
            if ((summed >> b & 1U) != 0) p.blocks[b].gradients = Tier::device;
            if ((kept >> b & 1U) == 0) continue;
            p.blocks[b].saved = Tier::device;
            saves = saves && w_.blocks[b].saved_bytes > Bytes{};
          }
          if (saves) add(p, least);
        }
      }
    }
  }
  /// Adds a placement that `least` becomes, which fitted before, and the same with fewer slots of
  /// the host, which are given up once all that may be is on the disk.
  void add(Placement p, const Placement& least) {
    if (!is_asked_for(p)) return;
    Loss loss = loss_of(p);
    const int outputs = count(p, is_on_disk);
    const int most = std::min(count(p, is_away), static_cast<int>(blocks_) - 2);
    const bool spilled =
        (request_.state || !p.any_state(Tier::host)) && (outputs == 0 || outputs == most);
    const Bytes device = std::max(needed(w_, p, Tier::device), needed(w_, least, Tier::device));
    const Bytes host = needed(w_, p, Tier::host);
    all_.push_back(
        {p, device, spilled ? host : std::max(host, needed(w_, least, Tier::host)), loss});
    if (!spilled) return;
    for (std::uint32_t* slots :
         {&p.state_slots, &p.boundary_staging, &p.saved_staging, &p.gradient_slots}) {
      while (*slots > 1) {
        --*slots;
        ++loss[kHostSlots];
        all_.push_back({p, device, needed(w_, p, Tier::host), loss});
      }
    }
  }

  [[nodiscard]] bool is_asked_for(const Placement& p) const {
    for (std::uint32_t b = 0; b < blocks_; ++b) {
      const BlockCut& cut = p.blocks[b];
      const bool saves = w_.blocks[b].saved_bytes > Bytes{};
      if (cut.state != request_.state.value_or(cut.state) ||
          cut.resident() != request_.resident.value_or(cut.resident()) ||
          (saves && cut.saved.has_value() != request_.keep.value_or(cut.saved.has_value())) ||
          (cut.state != Tier::device &&
           (cut.gradients == Tier::device) !=
               request_.sums.value_or(cut.gradients == Tier::device)) ||
          (b + 1 < blocks_ && cut.output != request_.activations.value_or(cut.output))) {
        return false;
      }
    }
    return true;
  }

  [[nodiscard]] Loss loss_of(const Placement& p) const {
    const bool state_away = p.blocks.front().state != Tier::device;
    const auto lost = [](bool any, std::uint32_t most, std::uint32_t slots) {
      return any ? static_cast<int>(most) - static_cast<int>(slots) : 0;
    };
    const int boundary = lost(p.boundary_slots > 0, 2 * parameter_slots_, p.boundary_slots);
    const int gradient = lost(state_away, 2, p.gradient_slots);
    const int parameter = lost(state_away, parameter_slots_, p.parameter_slots);
    return {p.any_output(Tier::nvme) ? 1 : 0,
            boundary + gradient + parameter > 0 ? 1 : 0,
            count(p, is_away),
            boundary,
            state_away ? 1 : 0,
            0,
            count(p, is_on_disk),
            count(p, [](const BlockCut& cut) { return cut.state == Tier::nvme; }),
            gradient,
            parameter,
            count(p, [](const BlockCut& cut) { return cut.saved > Tier::device; }),
            number(p, [](const BlockCut& cut) { return !cut.saved; }),
            number(p, [](const BlockCut& cut) { return !cut.resident(); }),
            number(p, [](const BlockCut& cut) { return cut.gradients == Tier::host; })};
  }

  const Workload& w_;
  const PlacementRequest& request_;
  std::uint32_t blocks_;
  std::uint32_t parameter_slots_;  ///< where none is given up
  std::vector<Candidate> all_;
};

struct Question {
  std::string name;
  Workload workload;
  PlacementRequest request;
};

Question question(const std::string& name, const PlacementRequest& asked = {}) {
  Question q{name, small_workload(), asked};
  q.workload.compute = DType::bf16;
  q.workload.micro_batches = 3;
  q.workload.boundary_bytes = 20'000_B;
  q.workload.blocks[1].saved_bytes = 30'000_B;
  q.workload.blocks[2].saved_bytes = 35'000_B;
  q.request.tile_parameters = ElementCount{2 * kLeafParameters};
  q.request.prefetch = asked.prefetch.value_or(1);
  return q;
}

std::vector<Question> questions() {
  std::vector<Question> list{
      question("all_is_open"),
      question("without_prefetch", {.prefetch = 0}),
      question("state_on_host", {.state = Tier::host}),
      question("state_on_disk", {.state = Tier::nvme}),
      question("streamed", {.resident = false}),
      question("resident", {.resident = true}),
      question("kept", {.keep = true}),
      question("recomputed", {.keep = false}),
      question("boundaries_on_host", {.activations = Tier::host}),
      question("offloaded", {.keep = true, .offload = true}),
      question("offloaded_to_disk", {.keep = true, .offload = true, .offload_to = Tier::nvme})};
  list.push_back(question("tied_head"));
  tie(list.back().workload);
  for (const auto& [name, sums] : {std::pair("two_rounds", std::optional<bool>{}),
                                   {"rounds_summed_on_the_device", true},
                                   {"rounds_summed_on_the_host", false}}) {
    list.push_back(question(name, {.sums = sums}));
    list.back().workload.blocks.erase(list.back().workload.blocks.begin() + 1);
    list.back().workload.rounds = 2;
  }
  return list;
}

void PrintTo(const Question& question, std::ostream* out) { *out << question.name; }

class ChoiceOracle : public testing::TestWithParam<Question> {};

/// Expects the candidate, or the shortage where none fits.
void expect_choice(const Question& q, const Budgets& budgets,
                   const std::vector<Candidate>& candidates) {
  const Candidate* best = nullptr;
  Bytes device = kPlenty, host = kPlenty;  // the least of all, and of those that fit the device
  for (const Candidate& each : candidates) {
    device = std::min(device, each.device);
    if (each.device > budgets.device) continue;
    host = std::min(host, each.host);
    if (each.host > budgets.host) continue;
    if (best == nullptr || each.loss < best->loss) best = &each;
  }
  const auto choice = choose_placement(q.workload, budgets, q.request);
  if (best == nullptr) {
    const auto* shortage = std::get_if<Shortage>(&choice);
    ASSERT_NE(shortage, nullptr);
    EXPECT_EQ(shortage->tier, device > budgets.device ? Tier::device : Tier::host);
    EXPECT_EQ(shortage->needed, shortage->tier == Tier::device ? device : host);
    return;
  }
  ASSERT_TRUE(std::holds_alternative<Placement>(choice));
  Placement placement = std::get<Placement>(choice);
  for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
    // It does not matter whether a block keeps nothing.
    if (q.workload.blocks[b].saved_bytes > Bytes{}) continue;
    placement.blocks[b].saved = best->placement.blocks[b].saved;
  }
  EXPECT_EQ(placement.blocks, best->placement.blocks);
  for (const Tier tier : kTiers) {
    EXPECT_EQ(needed(q.workload, placement, tier), needed(q.workload, best->placement, tier));
  }
}

TEST_P(ChoiceOracle, TakesThePlacementThatGivesUpLeast) {
  const Question& q = GetParam();
  const Candidates candidates(q.workload, q.request);
  const auto range = [&](Bytes Candidate::*bytes) {
    const auto [least, most] = std::ranges::minmax(candidates.all(), {}, bytes);
    return std::pair((least.*bytes).value(), (most.*bytes).value());
  };
  const auto device = range(&Candidate::device), host = range(&Candidate::host);
  RandomCases cases(property_seed());
  for (int i = 0; i < 300; ++i) {
    Budgets budgets = kUnlimited;
    budgets.device = Bytes{cases.between(device.first * 9 / 10, device.second)};
    // Sums of rounds need the less of the host the more of them are on the device.
    if (i % 2 == 0 && q.workload.rounds == 1) {
      budgets.host = Bytes{cases.between(host.first * 9 / 10, host.second)};
    }
    SCOPED_TRACE(testing::Message()
                 << budgets.device.value() << " B, host " << budgets.host.value() << " B");
    ASSERT_NO_FATAL_FAILURE(expect_choice(q, budgets, candidates.all()));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Small, ChoiceOracle, testing::ValuesIn(questions()),
                         [](const auto& q) { return q.param.name; });

}  // namespace
}  // namespace spillway::plan::choice_oracle_test
