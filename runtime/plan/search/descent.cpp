#include "runtime/plan/search/descent.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/plan/predict/price.hpp"
#include "runtime/plan/search/block_kinds.hpp"
#include "runtime/plan/search/slots.hpp"
#include "runtime/plan/step/builder/builder.hpp"

namespace spillway::plan::detail {
namespace {

/// Share of a step that one with a move must be shorter than, so that moves end.
constexpr double kShorter = 0.999;
/// What it takes to find out whether a move fits, in ops that are simulated in as much time.
constexpr std::size_t kOpsOfAFit = 20;

/// Ratios of the numbers of blocks that are moved.
constexpr std::uint32_t kFinely = 2, kCoarsely = 4;
/// Moves that are kept of those that may help.
constexpr std::size_t kMostMoves = 10'000;

/// Which blocks of a group move.
enum class Which : std::uint8_t { first, last, spread };

/// Another cut of some blocks of a group; of none, if `count` is 0.
struct Move {
  std::uint32_t group = 0;
  BlockCut to{};
  std::uint32_t count = 0;
  Which which = Which::last;
};

/// One move or two, which may leave everything as it is but for the slots.
struct Moves {
  Move one;
  Move two;
  double least_seconds = 0;  ///< no step with them is shorter
};

/// Returns the numbers of blocks of a group that are moved: ever half as many, but of few.
std::vector<std::uint32_t> counts_of(std::uint32_t blocks, std::uint32_t factor) {
  std::vector<std::uint32_t> counts;
  for (std::uint32_t count = blocks; count > 1; count = (count + factor - 1) / factor) {
    counts.push_back(count);
  }
  counts.push_back(1);
  return counts;
}

class Descent {
 public:
  Descent(const DescentRequest& question, PlannedStep from)
      : question_(question),
        sizes_(question.workload, from.placement.format, from.placement.tile_parameters,
               from.placement.commits),
        kinds_(sizes_, from.placement),
        builder_(question.workload, from.placement),
        draft_(sizes_, question.budgets, from.placement),
        best_(std::move(from)),
        cuts_(open_cuts(question.workload, question.request, question.profile)) {
    std::erase_if(cuts_, [&](const BlockCut& cut) {
      const bool on_disk =
          cut.state == Tier::nvme || cut.output == Tier::nvme || cut.saved == Tier::nvme;
      return on_disk && !best_.placement.uses_disk();
    });
  }

  PlannedStep run() {
    do {
      regroup();
    } while (take_shorter(single_moves()) || take_shorter(pairs_of_moves()));
    return std::move(best_);
  }

 private:
  void regroup() {
    groups_ = kinds_.groups_of(best_.placement);
    need_ = {};
    for (std::uint32_t b = 0; b < draft_.size(); ++b) {
      need_ += kinds_.need_of(b, best_.placement.blocks[b]);
    }
  }

  /// Returns the seconds that a step takes at least whose blocks need so much; more than any where
  /// they do not fit.
  [[nodiscard]] double least_seconds(Need need) const {
    const auto& [device, host, nvme] = question_.budgets;
    const std::array budgets{device, host, nvme};
    for (std::size_t tier = 0; tier < budgets.size(); ++tier) {
      const double budget = static_cast<double>(budgets.at(tier).value()) * (1 + kSumRounding);
      if (need.bytes.at(tier) > budget) return std::numeric_limits<double>::infinity();
    }
    const Placement& placement = best_.placement;
    const Bytes held = state_bytes(placement.format, placement.tile_parameters);
    need.work.read -= static_cast<double>(held.value()) * Placement().state_slots;
    need.work.read = std::max(0.0, need.work.read);
    return plan::least_seconds(question_.workload, need.work, question_.profile);
  }

  [[nodiscard]] double to_beat() const { return kShorter * best_.prediction.step_seconds; }

  /// Returns every other cut for each group, for numbers of blocks that differ by the factor.
  [[nodiscard]] std::vector<Move> moves(std::uint32_t factor) const {
    std::vector<Move> list;
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      const auto blocks = static_cast<std::uint32_t>(groups_[g].blocks.size());
      for (const BlockCut& cut : kinds_.others(groups_[g], cuts_)) {
        for (const std::uint32_t count : counts_of(blocks, factor)) {
          list.push_back({g, cut, count, Which::last});
          if (count == blocks) continue;
          list.push_back({g, cut, count, Which::first});
          if (count > 1 && factor == kFinely) list.push_back({g, cut, count, Which::spread});
        }
      }
    }
    return list;
  }

  [[nodiscard]] std::vector<std::uint32_t> blocks_of(const Move& move) const {
    std::vector<std::uint32_t> blocks;
    for (std::size_t i = 0; i < move.count; ++i) {
      const std::vector<std::uint32_t>& all = groups_[move.group].blocks;
      const std::size_t place = move.which == Which::first ? i
                                : move.which == Which::last
                                    ? all.size() - move.count + i
                                    : (2 * i + 1) * all.size() / (2 * move.count);
      blocks.push_back(all[place]);
    }
    return blocks;
  }

  /// Returns what a move changes of the need.
  [[nodiscard]] Need change_by(const Move& move) {
    Need change;
    for (const std::uint32_t b : blocks_of(move))
      change += kinds_.need_of(b, groups_[move.group].cut);
    change *= -1;
    for (const std::uint32_t b : blocks_of(move)) change += kinds_.need_of(b, move.to);
    return change;
  }

  /// Adds the moves to a list that is kept short, if they change the need to one that may be less.
  void consider(std::vector<Moves>& list, const Move& one, const Move& two,
                const Need& need) const {
    const double least = least_seconds(need);
    if (least >= to_beat()) return;
    list.push_back({one, two, least});
    if (list.size() < 2 * kMostMoves) return;
    std::ranges::stable_sort(list, {}, &Moves::least_seconds);
    list.resize(kMostMoves);
  }

  [[nodiscard]] std::vector<Moves> single_moves() {
    std::vector<Moves> list;
    consider(list, {}, {}, need_);
    for (const Move& move : moves(kFinely)) {
      Need need = need_;
      need += change_by(move);
      consider(list, move, {}, need);
    }
    return list;
  }

  [[nodiscard]] std::vector<Moves> pairs_of_moves() {
    const std::vector<Move> all = moves(kCoarsely);
    std::vector<Need> changes;
    changes.reserve(all.size());
    for (const Move& move : all) changes.push_back(change_by(move));
    std::vector<Moves> list;
    for (std::size_t i = 0; i < all.size(); ++i) {
      Need with_one = need_;
      with_one += changes[i];
      for (std::size_t j = 0; j < i; ++j) {
        if (!fit_together(all[i], all[j])) continue;
        Need need = with_one;
        need += changes[j];
        consider(list, all[i], all[j], need);
      }
    }
    return list;
  }

  /// Whether two moves are of different blocks.
  [[nodiscard]] bool fit_together(const Move& a, const Move& b) const {
    if (a.group != b.group) return true;
    return a.to != b.to && a.which != b.which &&
           a.count + b.count <= groups_[a.group].blocks.size();
  }

  /// Takes the first of the moves with which the step is shorter, those with the shortest bound
  /// first. Returns false if there is none.
  bool take_shorter(std::vector<Moves> list) {
    std::ranges::stable_sort(list, {}, &Moves::least_seconds);
    for (const Moves& each : list) {
      if (each.least_seconds >= to_beat() || spent_ >= question_.ops) return false;
      if (try_moves(each)) return true;
    }
    return false;
  }

  /// Leaves the draft with the moves if the step is shorter with them, else as it was.
  bool try_moves(const Moves& moves) {
    spent_ += kOpsOfAFit;
    for (const Move* move : {&moves.one, &moves.two}) {
      for (const std::uint32_t b : blocks_of(*move)) draft_.set(b, move->to);
    }
    for (const Slots& slots : fitting_slots(draft_, question_.request)) {
      if (is_shorter(slots)) return true;
    }
    for (std::uint32_t b = 0; b < draft_.size(); ++b) draft_.set(b, best_.placement.blocks[b]);
    return false;
  }

  bool is_shorter(const Slots& slots) {
    if (spent_ >= question_.ops) return false;
    take(draft_, slots);
    if (draft_.placement() == best_.placement) return false;
    builder_.restart(draft_.placement());
    builder_.training();
    spent_ += builder_.plan().ops.size();
    ++best_.simulated;
    std::optional<Prediction> prediction =
        simulate_within(builder_.plan(), question_.profile, to_beat());
    if (!prediction) return false;
    best_.placement = draft_.placement();
    best_.prediction = std::move(*prediction);
    return true;
  }

  const DescentRequest& question_;
  const PoolSizes sizes_;
  BlockKinds kinds_;
  Builder builder_;
  Draft draft_;  ///< the best placement, but for its slots, while no move is tried
  PlannedStep best_;
  std::vector<BlockCut> cuts_;
  std::vector<BlockGroup> groups_;  ///< of the best placement
  Need need_;                       ///< the same's
  std::size_t spent_ = 0;           ///< ops
};

}  // namespace

PlannedStep descend(const DescentRequest& question, PlannedStep from) {
  return Descent(question, std::move(from)).run();
}

}  // namespace spillway::plan::detail
