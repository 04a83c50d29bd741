// Builder: the state of building one step plan. It decides the order of ops and the buffers that
// they use; what they have to wait for follows from that. Its sides stand apart:
// builder_state.cpp has the way of optimizer state between its tier, the update and the disk,
// builder_gradients.cpp that of gradients, builder_activations.cpp that of the tensors between and
// inside blocks, builder_head.cpp the loss, builder_backward.cpp backward, builder_ranks.cpp what
// goes to other ranks, builder_tensor.cpp what a tensor group adds up, builder_external.cpp passes
// of another framework, builder.cpp the rest.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/step/dependency_tracker.hpp"
#include "runtime/plan/step/op_draft.hpp"
#include "runtime/plan/step/step_plan.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// A half-open range of micro-batches that one visit of a block works through.
struct MicroBatches {
  std::uint32_t first;
  std::uint32_t last;
};

class Builder {
 public:
  /// `records`: state that lives in memory goes to disk after its update.
  Builder(const Workload& workload, const Placement& placement, bool records = false);
  /// Begins a list for another placement in the memory of the last.
  void restart(const Placement& placement);

  void flush();
  void training();
  void fill();
  void evaluation();
  void snapshot();
  void external_backward();
  void external_norms();
  [[nodiscard]] const StepPlan& plan() const { return plan_; }
  StepPlan take() { return std::move(plan_); }

 private:
  void check_placement() const;
  void append(const OpDraft& draft);
  [[nodiscard]] OpDraft draft(OpKind kind, Lane lane, std::uint32_t block,
                              std::uint32_t micro_batch = 0) const;
  [[nodiscard]] OpDraft draft_of_tile(OpKind kind, Lane lane, std::uint32_t tile) const;

  // Buffers. Those of the pools named ..._slots, of accumulators and of staging come and go.
  void open_pool(PoolKind pool, std::uint32_t buffers);
  /// Returns the buffer of the pool that has been free for longest.
  Buffer take_free(PoolKind pool);
  void give_back(const Buffer& buffer);  ///< No effect on one that never comes and goes.
  [[nodiscard]] Buffer tiles_of(PoolKind pool, std::uint32_t block) const {
    return {pool, first_tile_[block], first_tile_[block + 1] - first_tile_[block]};
  }
  [[nodiscard]] Buffer of_micro_batch(PoolKind pool, std::uint32_t layer, std::uint32_t m) const {
    return {pool, layer * workload_.micro_batches_in_flight() + in_flight(m)};
  }
  /// Returns the place of a micro-batch of the round among those in flight.
  [[nodiscard]] std::uint32_t in_flight(std::uint32_t m) const {
    return workload_.stage.place_of(round_) * workload_.micro_batches + m;
  }
  [[nodiscard]] Buffer device_tokens(std::uint32_t m) const {
    return {PoolKind::device_tokens, in_flight(m)};
  }
  [[nodiscard]] std::uint32_t pass_index(std::uint32_t m) const {
    return round_ * workload_.micro_batches + m;
  }
  /// Returns the buffer of a pool of gradients that is the vectors' own, behind those that come and
  /// go.
  [[nodiscard]] Buffer of_vectors(PoolKind pool) const { return {pool, placement_.gradient_slots}; }
  /// Returns a buffer for what follows from `accumulator`: of the vectors their own, else a free
  /// one.
  Buffer take_slot(PoolKind pool, std::uint32_t block);
  [[nodiscard]] Buffer kept_activations(std::uint32_t block, std::uint32_t m) const;
  [[nodiscard]] Buffer tied_accumulator(std::uint32_t block) const {
    const std::uint32_t rounds = workload_.stage.tied_in_flight;
    return {PoolKind::tied_accumulators,
            (block - workload_.tied_blocks().first) * rounds + round_ % rounds};
  }

  // Values.
  /// Returns the output of a layer after its last block.
  [[nodiscard]] Value activation(std::uint32_t layer, std::uint32_t m) const {
    return {ValueKind::activation, layer, m, round_, last_part(layer)};
  }
  [[nodiscard]] Value tied_gradient(std::uint32_t block) const {
    return {ValueKind::tied_gradient_sum, block, 0, round_};
  }
  [[nodiscard]] Value activation_gradient(std::uint32_t layer, std::uint32_t m) const {
    return {ValueKind::activation_gradient, layer, m, round_};
  }
  /// Returns what is made by the blocks of a layer in turn, its parts, after one of them.
  [[nodiscard]] Value made_by(ValueKind kind, std::uint32_t layer, std::uint32_t part,
                              std::uint32_t m) const {
    return {kind, layer, m, round_, part};
  }
  /// Returns what backward of a layer needs.
  [[nodiscard]] Value saved(std::uint32_t layer, std::uint32_t m) const;
  [[nodiscard]] Value of_pass(ValueKind kind, std::uint32_t m) const {
    return {kind, 0, m, round_};
  }
  /// Returns how many updates the parameters lack that passes of the round use.
  [[nodiscard]] std::uint32_t age() const {
    return trains_ && workload_.stage.stays_full() ? workload_.stage.ages[round_] : 0;
  }
  [[nodiscard]] Value parameters(std::uint32_t block) const { return parameters(block, age()); }
  [[nodiscard]] static Value parameters(std::uint32_t block, std::uint32_t age) {
    return {ValueKind::parameters, block, 0, 0, age > 0 ? kStale + age - 1 : 0};
  }
  /// Returns the buffers of a version of a block's parameters.
  [[nodiscard]] Buffer stash_of(PoolKind pool, std::uint32_t block, std::uint32_t version) const {
    Buffer stash = tiles_of(pool, block);
    stash.first += version * static_cast<std::uint32_t>(tiles_.size());
    return stash;
  }

  // Optimizer state.
  void open_tiles();
  void update_tile(std::uint32_t tile);
  void record_tile(std::uint32_t tile);
  void write_tile(std::uint32_t tile, const Buffer& state);
  void read_ahead();
  void stash_block(std::uint32_t block);
  void update_block(std::uint32_t block);
  void append_step_commit();
  void append_commit();
  [[nodiscard]] bool keeps_parameters_with_state() const {
    return placement_.format != StateFormat::fp32;
  }

  // Parameters and gradients.
  enum class Needed : std::uint8_t { always, after_update };
  void upload_parameters(std::uint32_t block, const Buffer& target, Needed needed);
  void refresh_residents(std::uint32_t block);
  Buffer bring_parameters(std::uint32_t block);
  Buffer bring_frozen(std::uint32_t block);
  Buffer accumulator_of(std::uint32_t block, MicroBatches range);
  void read_vectors(OpDraft& draft) const;
  void write_vectors(OpDraft& draft) const;
  void meet_tiles(OpDraft& draft, std::uint32_t layer, std::uint32_t part,
                  std::uint32_t parts) const;
  void meet_tiles_of_head(OpDraft& draft, std::uint32_t part, bool train) const;
  void add_gradient(OpDraft& draft, const Buffer& accumulator);
  void finish_gradient(std::uint32_t block);
  void download_gradient(std::uint32_t block, const Buffer& gradient);
  void append_norms(std::uint32_t block, PoolKind gradients);

  // Other ranks.
  /// Returns what this rank has of a block's parameters, or of its gradient of a round.
  [[nodiscard]] Value shard_of(std::uint32_t block) const {
    return {ValueKind::parameters, block, 0, 0, workload_.shards() > 1 ? kShard : 0};
  }
  [[nodiscard]] static Value secondary_of(std::uint32_t block) {
    return {ValueKind::parameters, block, 0, 0, kSecondary};
  }
  [[nodiscard]] Value gradient_shard(std::uint32_t block) const {
    return {ValueKind::gradient, block, 0, round_, workload_.ranks.count > 1 ? kShard : 0};
  }
  void gather(std::uint32_t block, const Buffer& shard, const Buffer& whole, Needed needed);
  void keep_secondary(std::uint32_t block, const Buffer& whole);
  Buffer gather_on_node(std::uint32_t block);
  Buffer gather_for_pass(std::uint32_t block);
  void gather_ahead(std::uint32_t visited);
  [[nodiscard]] Buffer reduce_gradient(std::uint32_t block, const Buffer& gradient);

  // A tensor group.
  [[nodiscard]] Buffer between(std::uint32_t m) const { return {PoolKind::between_tiles, m}; }
  /// Returns what a rank adds to a sum, and where; an all-reduce makes the sum there.
  [[nodiscard]] Access addend_of(const Access& sum) const;
  [[nodiscard]] Access norm_gradient(std::uint32_t layer, std::uint32_t m) const;
  [[nodiscard]] Access gathered_normal(std::uint32_t layer, std::uint32_t m) const;
  [[nodiscard]] Access gathered_gradient(std::uint32_t layer, std::uint32_t m) const;
  void append_group(OpKind kind, std::uint32_t block, std::uint32_t m, Bytes bytes,
                    const Access& from, const Access& to);
  void sum_passes(std::uint32_t block, const Access& sum);
  void sum_shared(std::uint32_t block);
  void gather_normal(const OpDraft& reads, const Buffer& input);
  void gather_gradient(std::uint32_t block, std::uint32_t m);
  void backward_part(std::uint32_t block, std::uint32_t m, const Buffer& weights,
                     const Buffer& accumulator);
  void finish_backward(std::uint32_t block, std::uint32_t m, const Buffer& weights,
                       const Buffer& accumulator);
  void visit_forward_of_group(std::uint32_t block, MicroBatches range, bool train);
  void visit_backward_of_group(std::uint32_t block, MicroBatches range);
  void add_norm_gradient(OpDraft& draft, const Buffer& accumulator);
  /// Returns the part of a block's gradient sum that its last writer in a round leaves.
  [[nodiscard]] std::uint32_t last_gradient_part(std::uint32_t block) const {
    const std::uint32_t passes = workload_.micro_batches;
    const bool has_norm = workload_.sums_passes() && workload_.layer_of(block) > 0;
    return (has_norm ? 2 * passes : passes) - 1 + (workload_.sums_shared(block) ? 1 : 0);
  }
  /// What the passes of a head of a tensor group read and add to.
  struct HeadVisit {
    std::uint32_t block = 0;
    Buffer weights, borrowed;
    Buffer accumulator{};
  };
  [[nodiscard]] HeadVisit begin_head(MicroBatches range, bool train);
  [[nodiscard]] OpDraft draft_of_head(const HeadVisit& head, std::uint32_t m) const;
  void read_hidden(OpDraft& loss, const HeadVisit& head, std::uint32_t m) const;
  void scan_head(const HeadVisit& head, std::uint32_t m);
  void loss_of_part(const HeadVisit& head, std::uint32_t m, bool train);
  void finish_head(const HeadVisit& head, std::uint32_t m);
  void visit_head_of_group(MicroBatches range, bool train);

  // Activations.
  /// A saved tensor that waits for backward off the device: a boundary, or a block's internals.
  struct Leaving {
    Value value;
    std::uint32_t block;  ///< that its copies name
    Bytes bytes;
    PoolKind slots;    ///< on the device
    PoolKind staging;  ///< on the way to the disk
    Buffer home;
  };
  [[nodiscard]] Leaving boundary(std::uint32_t layer, std::uint32_t m) const;
  [[nodiscard]] Leaving internals(std::uint32_t block, std::uint32_t m) const;
  void append_copy(const Leaving& what, Lane lane, const Buffer& from, const Buffer& to);
  void take_away(const Leaving& what, const Buffer& made);
  Buffer bring_back(const Leaving& what);
  [[nodiscard]] Buffer passing_activation(std::uint32_t layer, std::uint32_t m) const;
  [[nodiscard]] Buffer passing_gradient(std::uint32_t m) const;
  Buffer returning_activation(std::uint32_t layer, std::uint32_t m);
  Buffer place_for_output(std::uint32_t layer, std::uint32_t m);
  Buffer place_for_gradient(std::uint32_t m);
  void pass_activation(std::uint32_t layer, std::uint32_t m, const Buffer& made, bool train);
  void pass_gradient(std::uint32_t m, const Buffer& made);
  Buffer returning_activations(std::uint32_t block, std::uint32_t m);

  // Passes.
  void visit_forward(std::uint32_t block, MicroBatches range, bool train, bool again = false);
  void forward_layer(std::uint32_t layer, MicroBatches range, bool train, bool update_first);
  void bring_tokens(OpDraft& draft, bool held) const;
  enum class LossPass : std::uint8_t { evaluation, scan /* before gradients */, gradient };
  void visit_loss(std::uint32_t block, MicroBatches range, LossPass pass);
  void visit_head(MicroBatches range, bool train);
  void visit_backward(std::uint32_t block, MicroBatches range);
  void backward_layer(std::uint32_t layer, MicroBatches range);
  void pass(MicroBatches range, bool update_first);
  void round(std::uint32_t round);

  // Stages of a pipeline.
  void staged_training();
  void run_steps(const std::vector<StageStep>& steps);
  void staged_evaluation();
  void run_forward(const BlockRange& layers, bool train);
  void run_backward(const BlockRange& layers);
  /// Returns the output of a layer that passes on, or its gradient on the way back.
  [[nodiscard]] Value passing(Direction direction, std::uint32_t layer, std::uint32_t m) const {
    return direction == Direction::forward ? activation(layer, m) : activation_gradient(layer, m);
  }
  void put_by(Direction direction, std::uint32_t layer);
  void restore_boundary(Direction direction, std::uint32_t layer);
  void exchange(const StageStep& step);
  void receive_boundaries(const StageStep& step, std::uint32_t layer);
  void send_boundaries(const StageStep& step, std::uint32_t layer);
  void exchange_tied_gradient(const StageStep& step);
  /// Returns whether the first pass of a list lends the embedding to the stage of a tied head.
  [[nodiscard]] bool lends_first() const {
    return round_ == 0 && workload_.lends_embedding() && !(trains_ && workload_.stage.stays_full());
  }
  void lend_embedding(const Buffer& weights);
  void lend_stash_of_embedding();
  void borrow_embedding();
  void append_message(OpKind kind, std::uint32_t peer, std::uint32_t block, std::uint32_t m,
                      Bytes bytes, const Access& what);
  /// What a pass of another framework reads of a block.
  struct ExternalWeights {
    Buffer trained;
    Buffer frozen;
  };
  ExternalWeights bring_external(OpDraft& pass);
  void give_back(const ExternalWeights& weights);
  void external_forward();
  void external_training();

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

  const Workload& workload_;
  Placement placement_;
  const bool records_;
  StepPlan plan_;
  DependencyTracker tracker_;
  std::vector<Tile> tiles_;
  std::vector<std::uint32_t> first_tile_;   // by block; behind them the number of all
  std::vector<ElementCount> narrow_slots_;  // by the number of gradient slots
  std::array<std::deque<std::uint32_t>, kPoolCount> free_;  // by pool, free for longest first
  std::vector<Buffer> accumulator_;                         // by block, of the visit under way
  std::vector<Buffer> passing_;      // by micro-batch: the boundary on its way
  std::map<Value, Buffer> waiting_;  // slots of boundaries between passes and messages of a stage
  // By micro-batch: the boundary that the parts of a layer under way share, which is the output
  // that forward makes, the input that backward reads or the gradient that the loss makes.
  std::vector<Buffer> held_;
  std::vector<std::optional<Buffer>> ahead_;  // by block: gathered for its backward
  std::vector<bool> secondary_;               // by block: the node has kept it in this step
  std::uint32_t ahead_until_ = 1;             // the last block that is gathered ahead of backward
  bool trains_ = false;
  std::vector<std::uint32_t> staged_tile_;  // by staging buffer: the last tile in it
  std::uint32_t staging_visits_ = 0;        // of tiles that live on disk: `read_ahead` counts on it
  std::uint32_t record_visits_ = 0;
  std::uint32_t round_ = 0;
};

}  // namespace spillway::plan
