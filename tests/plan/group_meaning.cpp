#include "tests/plan/group_meaning.hpp"

#include <utility>

namespace spillway::plan {
namespace {

class GroupMeaning {
 public:
  GroupMeaning(const RunOf& run, const Op& op, int visit)
      : w_(run.workload), p_(run.placement), op_(op), training_(run.training), visit_(visit) {}

  Needs of_op() {
    op_.group == RankGroup::tensor ? group_collective() : pass_of_group();
    return std::move(needs_);
  }

 private:
  void reads(const Value& value) { needs_.insert({value, false}); }
  void writes(const Value& value) { needs_.insert({value, true}); }
  [[nodiscard]] Value here(ValueKind kind, std::uint32_t of, Extent extent = Extent::whole) const {
    return {.kind = kind,
            .of = of,
            .micro_batch = op_.micro_batch,
            .round = op_.round,
            .extent = extent};
  }
  void input() { reads(here(ValueKind::boundary, op_.block - 1)); }
  void scratch() { writes({}); }
  [[nodiscard]] bool kept() const { return p_.blocks[op_.block].saved.has_value(); }
  [[nodiscard]] bool by_tokens() const { return w_.tensor.sequence; }
  [[nodiscard]] Value sum_after(std::uint32_t writers) const {
    return {ValueKind::gradient_sum, op_.block, 0, op_.round, writers - 1};
  }
  void sum_gradient() {
    if (op_.micro_batch > 0) reads(sum_after(op_.micro_batch));
    writes(sum_after(op_.micro_batch + 1));
  }

  /// A group sums what its passes make and gradients of what it shares, and gathers what its ranks
  /// know of tokens or, by tokens, what matrices read.
  void group_collective() {
    const ValueKind what = op_.copied.what;
    const auto passes = [&](const Value& from, const Value& to) {
      reads(from);
      writes(to);
    };
    if (what == ValueKind::gradient_sum && op_.kind == OpKind::all_reduce) {
      return passes(sum_after(writers_of_gradient(w_, op_.block) - 1),
                    sum_after(writers_of_gradient(w_, op_.block)));
    }
    const OpKind sum = by_tokens() ? OpKind::reduce_scatter : OpKind::all_reduce;
    if (op_.kind == sum && (what == ValueKind::boundary || what == ValueKind::between_tiles)) {
      return passes(here(what, op_.block, Extent::addend), here(what, op_.block));
    }
    if (op_.kind != OpKind::all_gather) return;  // no needs: what it declares is wrong
    if (what == ValueKind::gathered_scans) {
      return passes(here(ValueKind::scanned, 0), here(what, 0));
    }
    if (!by_tokens()) return;
    if (what == ValueKind::normal) {
      return passes(here(what, op_.block, Extent::shard), here(what, op_.block));
    }
    passes(here(ValueKind::boundary_gradient, op_.block),
           here(ValueKind::boundary_gradient, op_.block, Extent::gathered));
  }

  /// The passes of a micro-batch through a block in their order: the norm of its own tokens, where
  /// it has its own; the part that ends in an addend, of the head after its scan; and the rest.
  void pass_of_group() {
    enum Pass : int { norm, scan, part, finish };
    const bool head = op_.kind == OpKind::loss;
    int pass = visit_ + (by_tokens() && op_.block > 0 ? 0 : 1);
    if (!head && pass > norm) ++pass;  // it has no scan
    if (op_.block > 0) parameters_of_pass(pass == scan || pass == part);
    if (pass == norm) {
      input();
      writes(here(ValueKind::normal, op_.block, Extent::shard));
    } else if (pass == scan) {
      read_rows();
      reads(here(ValueKind::tokens, 0));
      if (!w_.runs(0)) writes(here(ValueKind::tokens, 0));
      writes(here(ValueKind::scanned, 0));
    } else if (pass == finish) {
      input();
      reads(here(ValueKind::between_tiles, op_.block));
      if (!head) reads(here(ValueKind::boundary_gradient, op_.block));
      writes(here(ValueKind::boundary_gradient, op_.block - 1));
      reads(sum_after(w_.micro_batches + op_.micro_batch));
      writes(sum_after(w_.micro_batches + op_.micro_batch + 1));
    } else {
      part_of_group();
    }
    scratch();
  }
  void parameters_of_pass(bool projects) {
    reads({ValueKind::parameters, op_.block});
    if (op_.kind == OpKind::loss && w_.tied_head && projects) reads({ValueKind::parameters, 0});
  }
  void read_rows() {
    if (!by_tokens()) return input();
    reads(here(ValueKind::normal, op_.block));
  }
  void part_of_group() {
    if (op_.kind == OpKind::forward) {
      if (op_.block == 0) {
        reads({ValueKind::parameters, 0});
        reads(here(ValueKind::tokens, 0));
        writes(here(ValueKind::tokens, 0));
      } else {
        input();  // the residual
        read_rows();
      }
      writes(here(ValueKind::boundary, op_.block, Extent::addend));
      if (kept() && training_) writes(here(ValueKind::saved, op_.block));
      return;
    }
    if (op_.kind == OpKind::loss) {
      read_rows();
      reads(here(ValueKind::tokens, 0));
      reads(here(ValueKind::gathered_scans, 0));
      writes(here(ValueKind::scanned, 0));
      writes(here(ValueKind::loss, 0));
      if (!training_) return;
      if (w_.tied_head) writes({ValueKind::tied_gradient_sum, 0, 0, op_.round});
    } else {
      reads(here(ValueKind::boundary_gradient, op_.block,
                 by_tokens() ? Extent::gathered : Extent::whole));
    }
    sum_gradient();
    if (op_.block == 0) return reads(here(ValueKind::tokens, 0));
    writes(here(ValueKind::between_tiles, op_.block, Extent::addend));
    if (op_.kind == OpKind::loss) return;
    read_rows();
    const Value saved = here(ValueKind::saved, op_.block);
    kept() ? reads(saved) : writes(saved);
  }

  const Workload& w_;
  const Placement& p_;
  const Op& op_;
  bool training_;
  int visit_;
  Needs needs_;
};

}  // namespace

std::uint32_t writers_of_gradient(const Workload& w, std::uint32_t block) {
  if (w.tensor.count == 1) return w.micro_batches;
  const bool adds_shared = w.blocks[block].partial_first < w.blocks[block].parameters;
  return w.micro_batches * (block == 0 ? 1 : 2) + (adds_shared ? 1 : 0);
}

Needs needs_of_group(const RunOf& run, const Op& op, int visit) {
  return GroupMeaning(run, op, visit).of_op();
}

}  // namespace spillway::plan
