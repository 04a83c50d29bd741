#include "tests/plan/plan_checker.hpp"

#include <fmt/format.h>

#include <array>
#include <map>

namespace spillway::plan {
namespace {

class Accesses {
 public:
  Accesses(const RunOf& run, const Op& op)
      : run_(run), op_(op), tiles_(make_tiles(run.workload, run.placement.tile_parameters)) {}

  std::vector<Access> of_op() {
    switch (op_.kind) {
      case OpKind::upload_params:
        reads_tiles(BufferKind::host_parameters);
        writes(parameters(op_.block, op_.slot));
        break;
      case OpKind::download_grads:
        if (op_.gradient_slot == kNoSlot) {
          reads_tiles(BufferKind::device_gradient);
        } else {
          reads(rounded());
        }
        if (run_.workload.rounds > 1 && op_.gradient_slot != kNoSlot) {
          writes({BufferKind::landing, op_.gradient_slot});
        } else {
          writes_tiles(BufferKind::host_gradient);
        }
        break;
      case OpKind::forward: forward(); break;
      case OpKind::backward: backward(); break;
      case OpKind::loss: loss(); break;
      case OpKind::accumulate: accumulate(); break;
      case OpKind::grad_norm:
        reads({op_.lane == Lane::gpu ? BufferKind::device_gradient : BufferKind::host_gradient,
               op_.tile});
        writes({BufferKind::norm_leaves, op_.tile});
        break;
      case OpKind::update: update(); break;
      case OpKind::save_activation:
        reads({BufferKind::boundary_slot, op_.boundary_slot});
        writes(host_boundary());
        break;
      case OpKind::load_activation:
        reads(host_boundary());
        writes({BufferKind::boundary_slot, op_.boundary_slot});
        break;
      case OpKind::spill_activation:
        reads(host_boundary());
        writes({BufferKind::disk_boundary, op_.block, op_.micro_batch});
        break;
      case OpKind::fetch_activation:
        reads({BufferKind::disk_boundary, op_.block, op_.micro_batch});
        writes(host_boundary());
        break;
      case OpKind::save_internals:
      case OpKind::load_internals: copy_internals(); break;
      case OpKind::read_state:
        reads({op_.lane == Lane::d2h ? BufferKind::device_state : BufferKind::disk, op_.tile});
        writes({BufferKind::staging, op_.slot});
        break;
      case OpKind::checksum:
        reads_slot();
        writes({BufferKind::checksum, op_.tile});
        break;
      case OpKind::write_state:
        reads_slot();
        reads({BufferKind::checksum, op_.tile});
        writes({BufferKind::disk, op_.tile});
        break;
      case OpKind::commit:
        for (std::uint32_t t = 0; t < tiles_.size(); ++t) reads({BufferKind::disk, t});
        break;
    }
    return std::move(list_);
  }

 private:
  void reads(const Buffer& buffer) { list_.push_back({buffer, false}); }
  void writes(const Buffer& buffer) { list_.push_back({buffer, true}); }
  void reads_tiles(BufferKind kind) { each_tile(kind, false); }
  void writes_tiles(BufferKind kind) { each_tile(kind, true); }
  /// All of a tile's slot: the state, and 16-bit parameters that are not staged with it.
  void reads_slot() {
    reads(op_.slot == kNoSlot ? Buffer{BufferKind::host_state, op_.tile}
                              : Buffer{BufferKind::staging, op_.slot});
    if (run_.placement.blocks[op_.block].state != Tier::device) {
      reads({BufferKind::host_parameters, op_.tile});
    }
  }
  void each_tile(BufferKind kind, bool write) {
    for (std::uint32_t t = 0; t < tiles_.size(); ++t) {
      if (tiles_[t].block == op_.block) list_.push_back({{kind, t}, write});
    }
  }

  [[nodiscard]] static Buffer parameters(std::uint32_t block, std::uint32_t slot) {
    if (slot == kNoSlot) return {BufferKind::resident, block};
    return {BufferKind::parameter_slot, slot};
  }
  /// Where on the host a boundary is: a home, a parking place or staging.
  [[nodiscard]] Buffer host_boundary() const {
    if (op_.slot != kNoSlot) return {BufferKind::boundary_staging, op_.slot};
    const bool last = op_.block + 2 == run_.workload.blocks.size();
    if (op_.of_gradient || last) return {BufferKind::parked_boundary, 0, op_.micro_batch};
    return {BufferKind::host_boundary, op_.block, op_.micro_batch};
  }
  [[nodiscard]] Buffer input() const {
    if (op_.input_slot != kNoSlot) return {BufferKind::boundary_slot, op_.input_slot};
    return {BufferKind::boundary, layer() - 1, op_.micro_batch};
  }
  [[nodiscard]] Buffer gradient() const {
    if (op_.boundary_slot != kNoSlot) return {BufferKind::boundary_slot, op_.boundary_slot};
    return {BufferKind::boundary_gradient, op_.micro_batch};
  }
  [[nodiscard]] Buffer output() const {
    if (op_.boundary_slot != kNoSlot) return {BufferKind::boundary_slot, op_.boundary_slot};
    return {BufferKind::boundary, layer(), op_.micro_batch};
  }
  [[nodiscard]] Buffer recomputed() const {
    if (run_.placement.blocks[op_.block].activations != Tier::device) {
      return {BufferKind::recomputed_boundary};
    }
    return {BufferKind::boundary, op_.block, op_.micro_batch};
  }
  [[nodiscard]] Buffer rounded() const {
    const bool same = run_.workload.compute == DType::fp32;
    return {same ? BufferKind::accumulator : BufferKind::rounded, op_.gradient_slot};
  }
  [[nodiscard]] bool tiled() const { return run_.workload.tiled; }
  [[nodiscard]] std::uint32_t layer() const { return run_.workload.layer_of(op_.block); }
  [[nodiscard]] bool kept() const {
    return run_.placement.blocks[run_.workload.first_block(layer())].keep;
  }
  [[nodiscard]] Buffer saved() const {
    constexpr std::uint32_t kScratch = ~0U;
    if (op_.saved_slot != kNoSlot) return {BufferKind::saved_slot, op_.saved_slot};
    if (!kept()) return {BufferKind::saved, kScratch, tiled() ? op_.micro_batch : 0};
    return {BufferKind::saved, layer(), op_.micro_batch};
  }
  [[nodiscard]] Buffer carried() const { return {BufferKind::carried, 0, op_.micro_batch}; }
  /// The vectors' parameters, and their gradient where the op has one.
  void vectors(bool gradient) {
    if (!tiled()) return;
    reads(parameters(0, kNoSlot));
    if (gradient) writes({BufferKind::accumulator, run_.placement.gradient_slots});
  }

  void copy_internals() {
    const bool saves = op_.kind == OpKind::save_internals;
    list_.push_back({saved(), !saves});
    list_.push_back({{BufferKind::host_saved, op_.block, op_.micro_batch}, saves});
  }

  void forward() {
    reads(parameters(op_.block, op_.slot));
    vectors(false);
    const bool uploads_tokens = op_.block == run_.workload.first_block(0);
    if (layer() == 0) {
      list_.push_back({{BufferKind::tokens, op_.micro_batch}, uploads_tokens});
    } else {
      reads(input());
    }
    if (tiled() ? layer() > 0 : kept() && run_.training) writes(saved());
    if (!op_.again) writes(output());
    writes({BufferKind::workspace});
  }

  void backward() {
    if (layer() == 0) {
      reads({BufferKind::tokens, op_.micro_batch});
    } else {
      reads(parameters(op_.block, op_.slot));
      vectors(true);
      reads(input());
      if (tiled()) writes(carried());
      if (kept() || tiled()) {
        reads(saved());
      } else {
        writes(saved());
        writes(recomputed());
      }
    }
    writes(gradient());
    writes({BufferKind::accumulator, op_.gradient_slot});
    writes({BufferKind::workspace});
  }

  void loss() {
    reads(parameters(op_.block, op_.slot));
    if (run_.workload.tied_head) reads(parameters(0, op_.tied_slot));
    vectors(op_.gradient_slot != kNoSlot);
    reads({BufferKind::tokens, op_.micro_batch});
    reads(input());
    const bool sums = !tiled() || op_.gradient_slot == kNoSlot;
    if (sums) writes({BufferKind::loss_sum, op_.round, op_.micro_batch});
    if (tiled()) writes(carried());
    writes({BufferKind::workspace});
    if (op_.gradient_slot == kNoSlot) return;
    writes(gradient());
    writes({BufferKind::accumulator, op_.gradient_slot});
    if (run_.workload.tied_head) writes({BufferKind::tied_accumulator});
  }

  void accumulate() {
    if (op_.lane == Lane::cpu) {
      reads({BufferKind::landing, op_.gradient_slot});
      writes_tiles(BufferKind::host_gradient);
      return;
    }
    writes({BufferKind::accumulator, op_.gradient_slot});
    if (op_.block == 0 && run_.workload.tied_head) reads({BufferKind::tied_accumulator});
    writes(rounded());
    if (gradient_on_device(run_.workload, run_.placement, op_.block)) {
      writes_tiles(BufferKind::device_gradient);
    }
  }

  void update() {
    if (op_.lane == Lane::gpu) {
      reads({BufferKind::device_gradient, op_.tile});
      writes({BufferKind::device_state, op_.tile});
      writes({BufferKind::resident, op_.block});
      return;
    }
    reads({BufferKind::host_gradient, op_.tile});
    writes({BufferKind::host_parameters, op_.tile});
    if (op_.slot == kNoSlot) {
      writes({BufferKind::host_state, op_.tile});
    } else {
      writes({BufferKind::staging, op_.slot});
      writes({BufferKind::checksum, op_.tile});
    }
  }

  const RunOf& run_;
  const Op& op_;
  std::vector<Tile> tiles_;
  std::vector<Access> list_;
};

bool is_serial(Lane lane) { return lane != Lane::nvme_read && lane != Lane::nvme_write; }

/// before[i][j]: op j is complete when op i starts.
std::vector<std::vector<bool>> happens_before(const StepPlan& plan, const RunOf& run) {
  std::vector<std::vector<bool>> before(plan.ops.size(), std::vector<bool>(plan.ops.size()));
  std::array<OpIndex, kLaneCount> last;
  last.fill(kNoSlot);
  for (OpIndex i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    if (!performed(run, op)) continue;
    const auto follow = [&](OpIndex earlier) {
      if (earlier == kNoSlot || !performed(run, plan.ops[earlier])) return;
      before[i][earlier] = true;
      for (OpIndex j = 0; j < earlier; ++j) before[i][j] = before[i][j] || before[earlier][j];
    };
    for (const OpIndex dependency : plan.dependencies_of(op)) follow(dependency);
    if (!is_serial(op.lane)) continue;
    OpIndex& previous = last[static_cast<std::size_t>(op.lane)];
    follow(previous);
    previous = i;
  }
  return before;
}

}  // namespace

bool performed(const RunOf& run, const Op& op) {
  return (run.pending || !op.if_pending) && !(run.warm && op.held);
}

std::vector<Access> accesses_of(const RunOf& run, const Op& op) {
  return Accesses(run, op).of_op();
}

std::string find_race(const StepPlan& plan, const RunOf& run) {
  for (OpIndex i = 0; i < plan.ops.size(); ++i) {
    for (const OpIndex dependency : plan.dependencies_of(plan.ops[i])) {
      if (dependency >= i) return fmt::format("op {} depends on op {}", i, dependency);
    }
  }
  const auto before = happens_before(plan, run);
  struct Use {
    OpIndex op;
    bool writes;
  };
  std::map<Buffer, std::vector<Use>> uses;
  for (OpIndex i = 0; i < plan.ops.size(); ++i) {
    if (!performed(run, plan.ops[i])) continue;
    for (const Access& access : accesses_of(run, plan.ops[i])) {
      std::vector<Use>& earlier = uses[access.buffer];
      for (const Use& use : earlier) {
        if (use.op == i || (!use.writes && !access.writes) || before[i][use.op]) continue;
        return fmt::format("ops {} ({}) and {} ({}) race on buffer {} {} {}", use.op,
                           name_of(plan.ops[use.op].kind), i, name_of(plan.ops[i].kind),
                           static_cast<int>(access.buffer.kind), access.buffer.index,
                           access.buffer.micro_batch);
      }
      earlier.push_back({i, access.writes});
    }
  }
  return {};
}

}  // namespace spillway::plan
