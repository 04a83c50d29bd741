#include "tests/plan/op_meaning.hpp"

#include <fmt/format.h>

#include <map>
#include <set>
#include <vector>

#include "tests/plan/group_meaning.hpp"
#include "tests/plan/op_places.hpp"

namespace spillway::plan {
namespace {

/// This rank's part of a block in the copy that its node keeps.
Value kept_by_node(const Op& op) {
  return {.kind = ValueKind::parameters, .of = op.block, .extent = Extent::secondary};
}

class Meaning {
 public:
  Meaning(const RunOf& run, const Op& op)
      : w_(run.workload), p_(run.placement), op_(op), training_(run.training) {}

  Needs of_op() {
    const bool of_group = op_.group == RankGroup::tensor;
    if (of_group || (w_.tensor.count > 1 && is_model_op(op_))) {
      return needs_of_group({w_, p_, training_}, op_, visit);
    }
    switch (op_.kind) {
      case OpKind::forward: forward(); break;
      case OpKind::backward: backward(); break;
      case OpKind::loss: loss(); break;
      case OpKind::round_gradient: round_gradient(); break;
      case OpKind::add_gradient:
        add_to_total();
        reads(own_gradient());
        break;
      case OpKind::grad_norm:
        reads({ValueKind::total_gradient, op_.block, 0, w_.rounds - 1});
        writes({ValueKind::norm_leaves, op_.tile});
        break;
      case OpKind::update: update(); break;
      case OpKind::checksum: to_disk(); break;
      case OpKind::copy: to_disk(); break;
      case OpKind::commit: reads(new_state()); break;
      case OpKind::stash:
        reads(old_parameters());
        writes(old_parameters());
        break;
      case OpKind::all_gather:
      case OpKind::reduce_scatter:
      case OpKind::all_reduce:
      case OpKind::all_to_all: collective(); break;
      case OpKind::send:
      case OpKind::receive: message(); break;
    }
    return std::move(needs_);
  }

 private:
  void reads(const Value& value) { needs_.insert({value, false}); }
  void writes(const Value& value) { needs_.insert({value, true}); }
  [[nodiscard]] Value here(ValueKind kind, std::uint32_t of, std::uint32_t part = 0) const {
    return {kind, of, op_.micro_batch, op_.round, part};
  }
  /// What an update leaves is ahead of the decision, or it is the newest.
  [[nodiscard]] Value updated(Value value) const {
    if (op_.speculative) value.age = kAhead;
    return value;
  }
  [[nodiscard]] Value checksum() const { return updated({ValueKind::checksum, op_.tile}); }
  [[nodiscard]] Value new_state() const {
    return updated({ValueKind::state, op_.kind == OpKind::commit ? 0 : op_.tile});
  }
  [[nodiscard]] Value old_state() const {
    const std::uint16_t age = op_.speculative ? 0 : 1;
    return {.kind = ValueKind::state, .of = op_.tile, .age = age};
  }
  [[nodiscard]] std::uint32_t layer() const {
    return w_.operator_tiles ? w_.blocks[op_.block].layer : op_.block;
  }
  [[nodiscard]] std::uint32_t first() const {
    return w_.operator_tiles ? w_.first_block(layer()) : op_.block;
  }
  [[nodiscard]] std::uint32_t tiles_of(std::uint32_t layer) const {
    if (!w_.operator_tiles) return 1;
    std::uint32_t count = 0;
    for (std::size_t b = 1; b < w_.blocks.size(); ++b) count += w_.blocks[b].layer == layer;
    return count;
  }
  [[nodiscard]] std::uint32_t part() const { return op_.block - first(); }
  [[nodiscard]] bool kept() const { return p_.blocks[first()].saved.has_value(); }
  [[nodiscard]] bool split() const { return p_.format != StateFormat::fp32; }

  /// What this rank has of a block that the ranks have a part of each.
  [[nodiscard]] Value own_parameters() const {
    const bool parts = w_.replicas.count > 1 && w_.replicas.sharding != Sharding::none;
    return {.kind = ValueKind::parameters,
            .of = op_.block,
            .extent = parts ? Extent::shard : Extent::whole};
  }
  [[nodiscard]] Value own_gradient() const {
    return {.kind = ValueKind::gradient,
            .of = op_.block,
            .round = op_.round,
            .extent = w_.replicas.count > 1 ? Extent::shard : Extent::whole};
  }
  /// Parameters pass between ranks where each has a part, by all_gather; gradients always do.
  void collective() {
    const bool parts = w_.replicas.sharding != Sharding::none;
    if (op_.kind == OpKind::all_gather && parts) {
      reads(op_.group == RankGroup::node ? kept_by_node(op_) : own_parameters());
      return writes({ValueKind::parameters, op_.block});
    }
    const bool one_by_one = w_.replicas.sums == SumOrder::fixed;
    const OpKind meant = parts ? (one_by_one ? OpKind::all_to_all : OpKind::reduce_scatter)
                               : (one_by_one ? OpKind::all_gather : OpKind::all_reduce);
    if (op_.kind != meant) return;  // no needs: what it declares is wrong
    reads({ValueKind::gradient, op_.block, 0, op_.round});
    writes(own_gradient());
  }

  /// What passes between stages goes forth or back; which of them the value says.
  void message() {
    const bool sends = op_.kind == OpKind::send;
    if (op_.copied.what == ValueKind::parameters) {
      needs_.insert({weights_of(0), !sends});
      return;
    }
    if (op_.copied.what == ValueKind::tied_gradient_sum) {
      needs_.insert({{ValueKind::tied_gradient_sum, 0, 0, op_.round}, !sends});
      return;
    }
    const bool forward = sends ? w_.runs(op_.block) : !w_.runs(op_.block);
    const ValueKind kind = forward ? ValueKind::boundary : ValueKind::boundary_gradient;
    needs_.insert({here(kind, op_.block), !sends});
  }

  [[nodiscard]] Value old_parameters() const {
    return {.kind = ValueKind::parameters, .of = op_.block, .age = 1};
  }
  /// Passes of a step use the weights that the step before began with, where the pipeline stays
  /// full, and those of the next step newer ones. Where each round is a step, a round that comes to
  /// the stage uses the newest ones, and so one that came `begun` rounds ago misses as many.
  [[nodiscard]] Value weights_of(std::uint32_t block) const {
    if (w_.stale.ages.empty() || !training_) return {ValueKind::parameters, block};
    if (w_.stale.delays_updates) return {.kind = ValueKind::parameters, .of = block, .age = 1};
    const bool each = w_.rounds == 1;
    const std::uint32_t late = each ? w_.stale.begun - op_.round : (op_.round < w_.rounds ? 1 : 0);
    return {.kind = ValueKind::parameters, .of = block, .age = static_cast<std::uint16_t>(late)};
  }
  void parameters() {
    reads(weights_of(op_.block));
    if (w_.operator_tiles) reads({ValueKind::parameters, 0});
  }
  void input() { reads(here(ValueKind::boundary, layer() - 1, tiles_of(layer() - 1) - 1)); }
  void scratch() { writes({}); }
  void sum_gradient() {
    const std::uint32_t m = op_.micro_batch;
    if (m > 0) reads({ValueKind::gradient_sum, op_.block, 0, op_.round, m - 1});
    writes({ValueKind::gradient_sum, op_.block, 0, op_.round, m});
  }
  void go_on_from_the_tile_behind(std::uint32_t layer) {
    if (part() + 1 < tiles_of(this->layer())) {
      reads(here(ValueKind::between_tiles, layer, part() + 1));
    }
    writes(here(ValueKind::between_tiles, layer, part()));
  }
  void sum_vectors() {
    if (w_.operator_tiles && op_.block > 0) writes({ValueKind::gradient_sum});
  }

  void forward() {
    parameters();
    const bool again = recomputes_tile;
    if (layer() > 0) {
      input();
    } else {
      reads(here(ValueKind::tokens, 0));
      if (part() == 0) writes(here(ValueKind::tokens, 0));
    }
    if (!again) writes(here(ValueKind::boundary, layer(), part()));
    const bool saves = w_.operator_tiles ? layer() > 0 : kept() && training_;
    if (saves && part() > 0) reads(here(ValueKind::saved, layer(), part() - 1));
    if (saves) writes(here(ValueKind::saved, layer(), part()));
    scratch();
  }

  void backward() {
    if (layer() > 0) {
      parameters();
      input();
      if (kept() || w_.operator_tiles) {
        std::uint32_t last = tiles_of(layer()) - 1;
        while (!kept() && !w_.blocks[first() + last].feeds_backward) --last;
        reads(here(ValueKind::saved, layer(), last));
      } else {
        writes(here(ValueKind::saved, layer()));
        writes(here(ValueKind::boundary, layer()));
      }
      if (w_.operator_tiles) go_on_from_the_tile_behind(layer());
      sum_vectors();
    } else {
      reads(here(ValueKind::tokens, 0));
    }
    reads(here(ValueKind::boundary_gradient, layer()));
    const bool ends = layer() > 0 && part() == 0;
    writes(here(ValueKind::boundary_gradient, ends ? layer() - 1 : layer()));
    sum_gradient();
    scratch();
  }

  /// A tied head in tiles has no blocks: the embedding's make the loss, and what that adds to their
  /// gradients is summed apart. Another tied head does the same with block 0 beside its own.
  void loss() {
    const bool alone = !w_.tied_head || !w_.operator_tiles;
    const std::uint32_t head = alone ? layer() : w_.blocks.back().layer + 1;
    const std::uint32_t tied = alone ? 0 : op_.block;
    parameters();
    if (w_.tied_head) reads(weights_of(tied));
    reads(here(ValueKind::boundary, head - 1, tiles_of(head - 1) - 1));
    reads(here(ValueKind::tokens, 0));
    if (!w_.runs(0)) writes(here(ValueKind::tokens, 0));
    const bool scans = w_.operator_tiles && !with_gradient;
    if (scans) {
      if (part() > 0) reads(here(ValueKind::scanned, head, part() - 1));
      writes(here(ValueKind::scanned, head, part()));
    } else if (w_.operator_tiles) {
      if (part() + 1 == tiles_of(layer())) reads(here(ValueKind::scanned, head, part()));
      go_on_from_the_tile_behind(head);
    }
    if (scans || !w_.operator_tiles) writes(here(ValueKind::loss, 0));
    scratch();
    if (!with_gradient) return;
    writes(here(ValueKind::boundary_gradient, head - 1));
    if (alone) sum_gradient();
    sum_vectors();
    if (w_.tied_head) writes({ValueKind::tied_gradient_sum, tied, 0, op_.round});
  }

  void add_to_total() {
    if (op_.round > 0) reads({ValueKind::total_gradient, op_.block, 0, op_.round - 1});
    writes({ValueKind::total_gradient, op_.block, 0, op_.round});
  }

  void round_gradient() {
    const Value narrow{ValueKind::gradient, op_.block, 0, op_.round};
    const BlockCut& cut = p_.blocks[op_.block];
    if (cut.state == Tier::device || cut.gradients == Tier::device) add_to_total();
    const bool vectors = w_.operator_tiles && op_.block == 0;
    reads(vectors ? Value{ValueKind::gradient_sum}
                  : Value{ValueKind::gradient_sum, op_.block, 0, op_.round,
                          writers_of_gradient(w_, op_.block) - 1});
    if (w_.tied_head && layer() == 0 && !vectors) {
      reads({ValueKind::tied_gradient_sum, op_.block, 0, op_.round});
    }
    writes(narrow);
    scratch();
  }

  void update() {
    const std::uint32_t round = op_.speculative ? w_.rounds - 1 : kLastStep;
    reads({ValueKind::total_gradient, op_.block, 0, round});
    reads(old_state());
    writes(new_state());
    writes(updated(own_parameters()));
    if (p_.blocks[op_.block].state == Tier::nvme) writes(checksum());
  }

  /// 16-bit parameters that the state is not whole without come from where the host keeps them.
  void to_disk() {
    reads(new_state());
    if (split() && p_.blocks[op_.block].state != Tier::device) {
      reads(updated(own_parameters()));
    }
    if (op_.kind == OpKind::checksum) return writes(checksum());
    reads(checksum());
    writes(new_state());
  }

 public:
  bool recomputes_tile = false;  ///< told by the plan: a second forward of a tile in a round
  bool with_gradient = false;    ///< of loss: its second visit with tiles, or any in training
  int visit = 0;                 ///< passes of the same micro-batch through the block before it

 private:
  const Workload& w_;
  const Placement& p_;
  const Op& op_;
  bool training_;
  Needs needs_;
};

/// A tile's slot on disk is made of several things; other copies have one source.
bool has_one_source(const Op& op) { return op.kind == OpKind::copy && op.copied != kWriteState; }

/// What comes out of a copy is what went in; of one round, the gradient is all of it. The 16-bit
/// parameters that state on the device is not whole without go with it.
std::string wrong_copy(const StepPlan& plan, const Op& op, const RunOf& run) {
  std::set<Value> in;
  std::set<Value> out;
  bool rides = false;
  const bool stages = is_copy(op, kStageState);
  for (const Access& access : plan.accesses_of(op)) {
    Value value = access.value;
    if (value.kind == ValueKind::gradient) {
      const bool shared = run.workload.replicas.count > 1;
      if (value.extent != (shared ? Extent::shard : Extent::whole)) return "ranks are left out";
      value.kind = ValueKind::total_gradient;
      value.extent = Extent::whole;
    }
    if (stages && value == Value{ValueKind::parameters, op.block}) {
      rides = true;
    } else {
      (access.writes ? out : in).insert(value);
    }
  }
  if (rides != (stages && run.placement.format != StateFormat::fp32))
    return "parameters ride or they do not";
  return in.size() == 1 && in == out ? "" : "it copies one thing to another";
}

/// Of a block that is whole a rank keeps its part.
bool keeps_secondary(const StepPlan& plan, const Op& op) {
  const std::span<const Access> accesses = plan.accesses_of(op);
  return op.kind == OpKind::copy && op.lane == Lane::d2h && accesses.size() == 2 &&
         accesses[0].value == Value{ValueKind::parameters, op.block} &&
         accesses[1].value == kept_by_node(op);
}

}  // namespace

std::string find_wrong_meaning(const StepPlan& plan, const RunOf& run) {
  const std::vector<Tile> tiles =
      make_tiles(run.workload, run.placement.tile_parameters, /*replica=*/0);
  std::map<std::vector<std::uint32_t>, int> seen;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    const auto fail = [&](const std::string& what) {
      return fmt::format("op {} ({} of block {}): {}", i, name_of(op), op.block, what);
    };
    Needs declared;
    for (const Access& access : plan.accesses_of(op)) {
      declared.insert({access.value, access.writes});
      if (const std::string wrong = find_wrong_place(op, access, run, tiles); !wrong.empty()) {
        return fail(wrong);
      }
    }
    if (keeps_secondary(plan, op)) continue;
    if (has_one_source(op)) {
      if (const std::string wrong = wrong_copy(plan, op, run); !wrong.empty()) return fail(wrong);
      continue;
    }
    Meaning meaning(run, op);
    meaning.visit =
        seen[{static_cast<std::uint32_t>(op.kind), op.block, op.round, op.micro_batch, op.tile}]++;
    const bool first = meaning.visit == 0;
    meaning.recomputes_tile = !first;
    meaning.with_gradient = run.training && (!run.workload.operator_tiles || !first);
    const Needs needed = meaning.of_op();
    for (const Need& need : needed) {
      if (declared.contains(need)) continue;
      return fail(fmt::format("it does not {} {} of {}", need.writes ? "write" : "read",
                              name_of(need.value.kind), need.value.of));
    }
    for (const Need& need : declared) {
      if (needed.contains(need)) continue;
      return fail(fmt::format("it should not {} {} of {}", need.writes ? "write" : "read",
                              name_of(need.value.kind), need.value.of));
    }
  }
  return {};
}

}  // namespace spillway::plan
