// StepDraft: the list of a step while it is built, with what all parts of the builder share.
// OpWriter: what they have in common: the names of buffers and values, and the way of an op into
// the list.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/step/builder/buffer_pools.hpp"
#include "runtime/plan/step/builder/op_list.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// A half-open range of micro-batches that one visit of a block works through.
struct MicroBatches {
  std::uint32_t first;
  std::uint32_t last;
};

struct StepDraft {
  /// Begins a list. The workload outlives this.
  StepDraft(const Workload& workload_of_step, const Placement& placement_of_step,
            const WhichList& which_of_step);
  /// Begins a list for another placement in the memory of the last.
  void restart(const Placement& placement_of_step);

  const Workload& workload;
  const WhichList which;
  Placement placement;
  OpList ops;
  BufferPools pools;
  std::vector<Tile> tiles;
  std::vector<std::uint32_t> first_tile;  ///< by block; behind them the number of all
  std::uint32_t round = 0;                ///< that passes are of
  bool trains = false;
};

class OpWriter {
 public:
  OpWriter(const OpWriter&) = delete;
  OpWriter& operator=(const OpWriter&) = delete;

 protected:
  explicit OpWriter(StepDraft& step)
      : step_(step), workload_(step.workload), placement_(step.placement) {}
  ~OpWriter() = default;

  [[nodiscard]] static OpDraft draft(OpKind kind, Lane lane, std::uint32_t block,
                                     std::uint32_t micro_batch = 0);
  [[nodiscard]] OpDraft draft_of_tile(OpKind kind, Lane lane, std::uint32_t tile) const;
  void append(const OpDraft& draft) { step_.ops.append(draft, step_.round); }
  /// Appends a collective of a tensor group.
  void append_group(OpKind kind, std::uint32_t block, std::uint32_t m, Bytes bytes,
                    const Access& from, const Access& to);
  Buffer take_free(PoolKind pool) { return step_.pools.take_free(pool); }
  void give_back(const Buffer& buffer) { step_.pools.give_back(buffer); }

  // Buffers

  [[nodiscard]] Buffer tiles_of(PoolKind pool, std::uint32_t block) const {
    return {pool, step_.first_tile[block], step_.first_tile[block + 1] - step_.first_tile[block]};
  }
  [[nodiscard]] Buffer of_micro_batch(PoolKind pool, std::uint32_t layer, std::uint32_t m) const {
    return {pool, layer * workload_.micro_batches_in_flight() + in_flight(m)};
  }
  /// Returns the place of a micro-batch of the round among those in flight.
  [[nodiscard]] std::uint32_t in_flight(std::uint32_t m) const {
    return place_of_round() * workload_.micro_batches + m;
  }
  /// Returns the place of the round among those in flight. Rounds of the next step count on from
  /// those of this one.
  [[nodiscard]] std::uint32_t place_of_round() const {
    const std::vector<std::uint32_t>& places = workload_.stale.places;
    if (!places.empty()) return places[step_.round % places.size()];
    return (step_.which.phase + step_.round) % workload_.stage.in_flight;
  }
  [[nodiscard]] Buffer device_tokens(std::uint32_t m) const {
    return {PoolKind::device_tokens, in_flight(m)};
  }
  [[nodiscard]] std::uint32_t pass_index(std::uint32_t m) const {
    return index_in_step(workload_, step_.round, m);
  }
  [[nodiscard]] Buffer tied_accumulator(std::uint32_t block) const {
    const std::uint32_t rounds = workload_.stage.tied_in_flight;
    return {PoolKind::tied_accumulators,
            (block - workload_.tied_blocks().first) * rounds + step_.round % rounds};
  }

  // Values

  /// Returns the output of a layer on its way forward, or its gradient on the way back.
  [[nodiscard]] Value passing(Direction direction, std::uint32_t layer, std::uint32_t m) const {
    return direction == Direction::forward ? boundary(layer, m) : boundary_gradient(layer, m);
  }
  /// Returns the output of a layer after its last block.
  [[nodiscard]] Value boundary(std::uint32_t layer, std::uint32_t m) const {
    return {ValueKind::boundary, layer, m, step_.round, last_part(layer)};
  }
  [[nodiscard]] Value tied_gradient(std::uint32_t block) const {
    return {ValueKind::tied_gradient_sum, block, 0, step_.round};
  }
  [[nodiscard]] Value boundary_gradient(std::uint32_t layer, std::uint32_t m) const {
    return {ValueKind::boundary_gradient, layer, m, step_.round};
  }
  /// Returns a value that the blocks of a layer, its parts, make in turn, as it is after `part`.
  [[nodiscard]] Value made_by(ValueKind kind, std::uint32_t layer, std::uint32_t part,
                              std::uint32_t m) const {
    return {kind, layer, m, step_.round, part};
  }
  /// Returns what backward of a layer needs.
  [[nodiscard]] Value saved(std::uint32_t layer, std::uint32_t m) const;
  [[nodiscard]] Value of_pass(ValueKind kind, std::uint32_t m) const {
    return {kind, 0, m, step_.round};
  }
  /// Number of updates that the parameters in the round's passes lack.
  [[nodiscard]] std::uint32_t age() const {
    return step_.trains && workload_.stale.stashes() ? workload_.stale.ages[step_.round] : 0;
  }
  [[nodiscard]] Value parameters(std::uint32_t block) const { return parameters(block, age()); }
  [[nodiscard]] static Value parameters(std::uint32_t block, std::uint32_t age) {
    return {.kind = ValueKind::parameters, .of = block, .age = static_cast<std::uint16_t>(age)};
  }
  /// Returns the buffers of the parameters of a block that a round uses, where they are not the
  /// newest. The pending update is about to change those of round `versions - 1`.
  [[nodiscard]] Buffer stash_of(PoolKind pool, std::uint32_t block, std::uint32_t round) const {
    const std::uint32_t version = (step_.which.phase + round) % workload_.stale.versions;
    Buffer stash = tiles_of(pool, block);
    stash.first += version * static_cast<std::uint32_t>(step_.tiles.size());
    return stash;
  }
  /// Returns what this rank has of a block's parameters.
  [[nodiscard]] Value shard_of(std::uint32_t block) const {
    return {.kind = ValueKind::parameters,
            .of = block,
            .extent = workload_.shards() > 1 ? Extent::shard : Extent::whole};
  }
  [[nodiscard]] static Value secondary_of(std::uint32_t block) {
    return {.kind = ValueKind::parameters, .of = block, .extent = Extent::secondary};
  }
  [[nodiscard]] Value gradient_shard(std::uint32_t block) const {
    return {.kind = ValueKind::gradient,
            .of = block,
            .round = step_.round,
            .extent = workload_.replicas.count > 1 ? Extent::shard : Extent::whole};
  }
  [[nodiscard]] std::uint32_t blocks() const {
    return static_cast<std::uint32_t>(workload_.blocks.size());
  }
  [[nodiscard]] std::uint32_t last_part(std::uint32_t layer) const {
    return workload_.first_block(layer + 1) - workload_.first_block(layer) - 1;
  }
  [[nodiscard]] bool recomputes(std::uint32_t layer) const {
    return layer > 0 && !placement_.blocks[workload_.first_block(layer)].saved;
  }
  [[nodiscard]] Bytes shard_bytes(std::uint32_t block) const {
    return Bytes{workload_.shard_elements(block).value() * size_of(workload_.compute)};
  }

  [[nodiscard]] Bytes secondary_bytes(std::uint32_t block) const {
    return Bytes{workload_.secondary_elements(block).value() * size_of(workload_.compute)};
  }

  StepDraft& step_;
  const Workload& workload_;
  const Placement& placement_;
};

}  // namespace spillway::plan
