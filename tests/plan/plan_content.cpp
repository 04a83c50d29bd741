// The second question of plan_checker.hpp: what each buffer holds, told in list order.
#include <fmt/format.h>

#include <map>
#include <set>

#include "tests/plan/boundary_content.hpp"
#include "tests/plan/internals_content.hpp"
#include "tests/plan/plan_checker.hpp"

namespace spillway::plan {
namespace {

/// What a buffer holds. Which fields mean something depends on the buffer.
struct Content {
  std::uint32_t what = ~0U;  ///< block or tile
  std::uint32_t count = 0;   ///< version, or micro-batches or rounds summed
  std::uint32_t round = 0;
  auto operator<=>(const Content&) const = default;
};

class Interpreter {
 public:
  explicit Interpreter(const RunOf& run)
      : run_(run),
        w_(run.workload),
        tiles_(make_tiles(run.workload, run.placement.tile_parameters)),
        newest_(run.pending ? 1 : 0),
        boundaries_(run.workload) {
    each_head_tile([&](std::uint32_t slot, std::uint32_t tile) {
      if (run.warm) staging_[slot] = {tile, 0, 0};
    });
  }

  std::string run(const StepPlan& plan) {
    for (OpIndex i = 0; i < plan.ops.size(); ++i) {
      if (!performed(run_, plan.ops[i])) continue;
      perform(plan.ops[i]);
      if (!wrong_.empty()) {
        return fmt::format("op {} ({} of block {}): {}", i, name_of(plan.ops[i].kind),
                           plan.ops[i].block, wrong_);
      }
    }
    const bool steps = !plan.ops.empty() && !normed_.empty();
    each_head_tile([&](std::uint32_t slot, std::uint32_t tile) {
      const bool ready = staging_[slot] == Content{tile, newest_, 0};
      need(ready || !steps || !run_.pending, "the next step does not find its first tiles");
    });
    return wrong_;
  }

 private:
  /// The tiles that a step finds in its staging slots if another step ran before it.
  template <class Visit>
  void each_head_tile(const Visit& visit) {
    std::uint32_t slot = 0;
    for (std::uint32_t t = 0; t < tiles_.size() && slot < run_.placement.state_slots; ++t) {
      if (run_.placement.blocks[tiles_[t].block].state == Tier::nvme) visit(slot++, t);
    }
  }

  void need(bool holds, const char* what) {
    if (!holds && wrong_.empty()) wrong_ = what;
  }
  template <class Visit>
  void each_tile(std::uint32_t block, const Visit& visit) {
    for (std::uint32_t t = 0; t < tiles_.size(); ++t) {
      if (tiles_[t].block == block) visit(t);
    }
  }

  void need_parameters(std::uint32_t block, std::uint32_t slot, const char* what) {
    const std::uint32_t version = slot == kNoSlot ? resident_[block] : slots_[slot].count;
    need(slot == kNoSlot ? run_.placement.blocks[block].resident : slots_[slot].what == block,
         what);
    need(version == newest_, "the parameters are not the newest");
    if (run_.placement.blocks[block].state != Tier::device) return;
    each_tile(block, [&](std::uint32_t t) {
      need(device_state_[t] == newest_, "a tile is not updated yet");
    });
  }

  void perform(const Op& op) {
    switch (op.kind) {
      case OpKind::read_state: return read_state(op);
      case OpKind::write_state: return write_state(op);
      case OpKind::upload_params: return upload(op);
      case OpKind::download_grads: return download(op);
      case OpKind::forward: return forward(op);
      case OpKind::backward: return backward(op);
      case OpKind::loss: return loss(op);
      case OpKind::accumulate: return accumulate(op);
      case OpKind::grad_norm:
        need(gradient_[op.tile] == w_.rounds, "the gradient lacks a round");
        need(normed_.insert(op.tile).second, "the tile's norm has been taken");
        return;
      case OpKind::update: return update(op);
      case OpKind::checksum: return checksum(op);
      case OpKind::save_activation:
      case OpKind::load_activation:
      case OpKind::spill_activation:
      case OpKind::fetch_activation: return need(boundaries_.move(op), "another boundary is there");
      case OpKind::save_internals:
      case OpKind::load_internals:
        return need(internals_.move(op), "others' activations are there");
      case OpKind::commit:
        for (std::uint32_t t = 0; t < tiles_.size(); ++t) {
          const bool lives_there = run_.placement.blocks[tiles_[t].block].state == Tier::nvme;
          const bool due = run_.pending || !lives_there;
          need(!due || written_.count(t) == 1, "a tile is not on the disk yet");
        }
        return;
    }
  }

  void read_state(const Op& op) {
    if (op.lane == Lane::d2h) need(device_state_[op.tile] == newest_, "the state is old");
    staging_[op.slot] = {op.tile, op.lane == Lane::d2h ? newest_ : disk_[op.tile], 0};
  }

  void need_newest(const Op& op) {
    if (op.slot != kNoSlot) {
      need(staging_[op.slot] == Content{op.tile, newest_, 0}, "the staging slot is another tile's");
    } else {
      need(host_state_[op.tile] == newest_, "the host's state is old");
    }
  }

  void checksum(const Op& op) {
    need_newest(op);
    summed_.insert(op.tile);
  }

  void write_state(const Op& op) {
    need_newest(op);
    need(summed_.count(op.tile) == 1, "the checksum is another state's");
    disk_[op.tile] = newest_;
    need(written_.insert(op.tile).second, "the tile is on the disk already");
  }

  void upload(const Op& op) {
    each_tile(op.block, [&](std::uint32_t t) {
      need(host_parameters_[t] == newest_, "the host's parameters are old");
    });
    if (op.slot == kNoSlot) {
      resident_[op.block] = newest_;
    } else {
      slots_[op.slot] = {op.block, newest_, 0};
    }
  }

  void download(const Op& op) {
    if (op.gradient_slot == kNoSlot) {
      each_tile(op.block, [&](std::uint32_t t) { gradient_[t] = device_sums_[t]; });
      return;
    }
    need(rounded_[op.gradient_slot] == Content{op.block, w_.micro_batches, op.round},
         "the rounded gradient is another one");
    if (w_.rounds > 1) {
      landing_[op.gradient_slot] = rounded_[op.gradient_slot];
    } else {
      each_tile(op.block, [&](std::uint32_t t) { gradient_[t] = 1; });
    }
  }

  void update(const Op& op) {
    need(gradient_.count(op.tile) == 0, "the gradient is the next step's already");
    if (op.lane == Lane::gpu) {
      device_state_[op.tile] = newest_;
      resident_[op.block] = newest_;
      return;
    }
    if (op.slot == kNoSlot) {
      host_state_[op.tile] = newest_;
    } else {
      need(staging_[op.slot] == Content{op.tile, 0, 0}, "the staging slot is another tile's");
      staging_[op.slot].count = newest_;
      summed_.insert(op.tile);
    }
    host_parameters_[op.tile] = newest_;
  }

  void need_input(const Op& op) {
    const TensorOf wanted{op.block - 1, op.micro_batch, op.round + 1, false};
    if (op.input_slot == kNoSlot) {
      const bool on_device = run_.placement.blocks[op.block - 1].activations == Tier::device;
      need(on_device && boundary_[{layer_of(op) - 1, op.micro_batch}] == op.round + 1,
           "the input is missing");
    } else {
      need(boundaries_.slot(op.input_slot) == wanted, "the slot's input is another");
    }
  }

  void set_output(const Op& op) {
    if (op.boundary_slot == kNoSlot) {
      boundary_[{layer_of(op), op.micro_batch}] = op.round + 1;
    } else {
      need(op.boundary_slot != op.input_slot, "the output overwrites the input");
      boundaries_.slot(op.boundary_slot) = {op.block, op.micro_batch, op.round + 1, false};
    }
  }

  /// The gradient of the boundary behind `block`, where the op has it.
  TensorOf& gradient_of(const Op& op) {
    return op.boundary_slot == kNoSlot ? boundary_gradient_[op.micro_batch]
                                       : boundaries_.slot(op.boundary_slot);
  }

  [[nodiscard]] std::uint32_t layer_of(const Op& op) const { return w_.layer_of(op.block); }
  [[nodiscard]] std::uint32_t last_block(const Op& op) const {
    return w_.first_block(layer_of(op) + 1) - 1;
  }
  [[nodiscard]] bool is_first(const Op& op) const {
    return op.block == w_.first_block(layer_of(op));
  }
  [[nodiscard]] bool is_kept(const Op& op) const {
    return run_.placement.blocks[w_.first_block(layer_of(op))].keep;
  }
  /// What the tiles of a layer have saved: all of one pass up to a block.
  Content& saved_by_tiles(const Op& op) {
    constexpr std::uint32_t kScratch = ~0U;
    return saved_by_tiles_[{is_kept(op) ? layer_of(op) : kScratch, op.micro_batch}];
  }
  /// The next tile of a layer finds what the one before, that ran in this pass, has left.
  void follow(Content& progress, const Op& op, std::uint32_t before, const char* what) {
    const bool first = before == op.block;
    need(first || progress == Content{layer_of(op), before, op.round}, what);
    progress = {layer_of(op), op.block, op.round};
  }

  void forward_tile(const Op& op) {
    need_parameters(0, kNoSlot, "the vectors are elsewhere");
    const bool embeds = layer_of(op) == 0;
    if (!embeds) need_input(op);
    const bool skips = op.again && !is_first(op) && !w_.blocks[op.block - 1].feeds_backward;
    need(!skips, "a tile that does not feed backward stands before one that does");
    follow(embeds ? embedded_[op.micro_batch] : saved_by_tiles(op), op,
           is_first(op) ? op.block : op.block - 1, "the tile before has not run");
    if (op.block == last_block(op) && !op.again) set_output(op);
  }

  void backward_tile(const Op& op) {
    const bool last = op.block == last_block(op);
    if (layer_of(op) > 0) {
      need_parameters(op.block, op.slot, "the slot holds another block");
      need_parameters(0, kNoSlot, "the vectors are elsewhere");
      need_input(op);
      const Content& saved = saved_by_tiles(op);
      std::uint32_t needed = last_block(op);
      while (!w_.blocks[needed].feeds_backward) --needed;
      need(saved.what == layer_of(op) && saved.round == op.round && saved.count >= needed,
           "not all is saved");
      follow(carried_[op.micro_batch], op, last ? op.block : op.block + 1,
             "the tile behind has not run");
    }
    TensorOf& gradient = gradient_of(op);
    need(gradient == TensorOf{layer_of(op), op.micro_batch, op.round + 1, true},
         "the output's gradient is missing");
    if (is_first(op) && layer_of(op) > 0) {
      gradient.block = layer_of(op) - 1;
      ++vectors_;
    }
    sum_into(accumulator_[op.gradient_slot], op);
  }

  void loss_tile(const Op& op) {
    const bool last = op.block == last_block(op);
    need_parameters(op.block, op.slot, "the slot holds another block");
    need_parameters(0, kNoSlot, "the vectors are elsewhere");
    need_input(op);
    Content& scanned = scanned_[op.micro_batch];
    if (op.gradient_slot == kNoSlot) {
      return follow(scanned, op, is_first(op) ? op.block : op.block - 1, "a tile is not scanned");
    }
    need(scanned == Content{layer_of(op), last_block(op), op.round}, "the scans are incomplete");
    follow(carried_[op.micro_batch], op, last ? op.block : op.block + 1,
           "the tile behind has not run");
    if (is_first(op)) {
      gradient_of(op) = {layer_of(op) - 1, op.micro_batch, op.round + 1, true};
      ++vectors_;
    }
    sum_into(accumulator_[op.gradient_slot], op);
  }

  void forward(const Op& op) {
    need_parameters(op.block, op.slot, "the slot holds another block");
    if (w_.tiled) return forward_tile(op);
    if (op.block > 0) need_input(op);
    set_output(op);
    internals_.save(op);
  }

  void sum_into(Content& sums, const Op& op) {
    if (op.micro_batch == 0) sums = {op.block, 0, op.round};
    need(sums == Content{op.block, op.micro_batch, op.round}, "the accumulator holds another sum");
    ++sums.count;
  }

  void backward(const Op& op) {
    if (w_.tiled) return backward_tile(op);
    if (op.block > 0) {
      need_parameters(op.block, op.slot, "the slot holds another block");
      need_input(op);
      const bool leaves =
          run_.placement.blocks[op.block].offload && w_.blocks[op.block].saved_bytes > Bytes{};
      need((op.saved_slot != kNoSlot) == leaves, "the slot is not of this placement");
      need(internals_.finds(op), "nothing was saved");
    }
    TensorOf& gradient = gradient_of(op);
    need(gradient == TensorOf{op.block, op.micro_batch, op.round + 1, true},
         "the output's gradient is missing");
    gradient.block = op.block - 1;
    sum_into(accumulator_[op.gradient_slot], op);
  }

  void loss(const Op& op) {
    if (w_.tiled) return loss_tile(op);
    need_parameters(op.block, op.slot, "the slot holds another block");
    if (w_.tied_head) need_parameters(0, op.tied_slot, "the tied slot holds another block");
    need_input(op);
    if (op.gradient_slot == kNoSlot) return;
    need(op.boundary_slot == kNoSlot || op.boundary_slot != op.input_slot,
         "the gradient overwrites the input");
    gradient_of(op) = {op.block - 1, op.micro_batch, op.round + 1, true};
    sum_into(accumulator_[op.gradient_slot], op);
    if (w_.tied_head) sum_into(tied_, op);
  }

  void accumulate(const Op& op) {
    const Content whole{op.block, w_.micro_batches, op.round};
    const auto add_round_to = [&](std::map<std::uint32_t, std::uint32_t>& sums) {
      each_tile(op.block, [&](std::uint32_t t) {
        if (op.round == 0) sums[t] = 0;
        need(sums[t] == op.round, "an earlier round is missing");
        ++sums[t];
      });
    };
    if (op.lane == Lane::cpu) {
      need(landing_[op.gradient_slot] == whole, "another gradient has landed");
      return add_round_to(gradient_);
    }
    if (w_.tiled && op.block == 0) {
      need(vectors_ == w_.micro_batches * (w_.layers() - 1), "a layer's vectors are missing");
      vectors_ = 0;
    } else {
      need(accumulator_[op.gradient_slot] == whole, "a micro-batch is missing");
    }
    if (op.block == 0 && w_.tied_head) {
      const auto head = static_cast<std::uint32_t>(w_.blocks.size() - 1);
      need(tied_ == Content{head, w_.micro_batches, op.round}, "the tied gradient is missing");
    }
    rounded_[op.gradient_slot] = whole;
    if (run_.placement.blocks[op.block].state == Tier::device) return add_round_to(gradient_);
    if (gradient_on_device(w_, run_.placement, op.block)) add_round_to(device_sums_);
  }

  using Place = std::pair<std::uint32_t, std::uint32_t>;
  const RunOf& run_;
  const Workload& w_;
  std::vector<Tile> tiles_;
  std::uint32_t newest_;  // version of state and parameters once the update is through
  std::string wrong_;
  std::map<std::uint32_t, Content> slots_, accumulator_, rounded_, landing_, staging_;
  BoundaryContent boundaries_;
  InternalsContent internals_;
  std::map<std::uint32_t, TensorOf> boundary_gradient_;
  std::map<std::uint32_t, std::uint32_t> resident_, host_parameters_, host_state_, device_state_;
  std::map<std::uint32_t, std::uint32_t> disk_;
  std::map<std::uint32_t, std::uint32_t> gradient_, device_sums_;  // tile: rounds of this step
  std::map<Place, std::uint32_t> boundary_;
  // Tiles, by micro-batch: how far a layer has come.
  std::map<Place, Content> saved_by_tiles_;
  std::map<std::uint32_t, Content> embedded_, scanned_, carried_;
  std::uint32_t vectors_ = 0;  // layers and micro-batches in their sum
  std::set<std::uint32_t> normed_, written_, summed_;
  Content tied_;
};

}  // namespace

std::string find_wrong_content(const StepPlan& plan, const RunOf& run) {
  return Interpreter(run).run(plan);
}

}  // namespace spillway::plan
