// PassWriter: the visits of blocks by forward and backward. Two kinds: a rank that computes whole
// layers, at once or tile by tile, and one of a tensor group, which computes a part of each.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/plan/step/builder/activations.hpp"
#include "runtime/plan/step/builder/gradients.hpp"
#include "runtime/plan/step/builder/messages.hpp"
#include "runtime/plan/step/builder/step_draft.hpp"
#include "runtime/plan/step/builder/weights.hpp"

namespace spillway::plan {

/// What visits use of the other parts.
struct Ways {
  Weights& weights;
  Gradients& gradients;
  Activations& activations;
  Messages& messages;
};

class PassWriter : public OpWriter {
 public:
  virtual ~PassWriter() = default;
  /// Forgets the boundaries that the last list has shared.
  void restart() { shared_.assign(workload_.micro_batches, {}); }

  /// Writes the forward of a block.
  virtual void visit_forward(std::uint32_t block, MicroBatches range, bool train) = 0;
  /// Writes the loss and, in training, its gradient.
  virtual void visit_head(MicroBatches range, bool train) = 0;
  /// Writes the backward of a layer's blocks, in reverse, with what it recomputes.
  virtual void backward_layer(std::uint32_t layer, MicroBatches range) = 0;

 protected:
  PassWriter(StepDraft& step, const Ways& ways)
      : OpWriter(step),
        weights_(ways.weights),
        gradients_(ways.gradients),
        activations_(ways.activations),
        messages_(ways.messages) {
    restart();
  }
  /// Declares that an op reads the tokens. `brought`: the embedding has brought them to the device.
  void bring_tokens(OpDraft& draft, bool brought) const;

  Weights& weights_;
  Gradients& gradients_;
  Activations& activations_;
  Messages& messages_;
  // By micro-batch: the boundary that the parts of a layer under way share, which is the output
  // that forward makes, the input that backward reads or the gradient that the loss makes.
  std::vector<Buffer> shared_;
};

/// Passes of a rank that computes whole layers; with `Workload::operator_tiles` tile by tile, where
/// the tiles of a layer share its saved activations and the gradient of its input.
class LayerPasses final : public PassWriter {
 public:
  LayerPasses(StepDraft& step, const Ways& ways) : PassWriter(step, ways) {}
  void visit_forward(std::uint32_t block, MicroBatches range, bool train) override {
    visit_forward(block, range, train, /*again=*/false);
  }
  void visit_head(MicroBatches range, bool train) override;
  void backward_layer(std::uint32_t layer, MicroBatches range) override;

 private:
  enum class HeadPass : std::uint8_t { evaluation, scan /* before gradients */, gradient };
  void visit_forward(std::uint32_t block, MicroBatches range, bool train, bool again);
  void visit_backward(std::uint32_t block, MicroBatches range);
  void visit_loss(std::uint32_t block, MicroBatches range, HeadPass pass);
  /// What the passes of a block of the loss read and add to.
  struct LossVisit {
    std::uint32_t block = 0;
    HeadPass pass{};
    bool is_own = true;                ///< of the head, which may be tied and have none
    std::optional<Buffer> borrowed{};  ///< the embedding of a tied head, beside what is its own
    Buffer weights{}, accumulator{};

    [[nodiscard]] bool trains() const { return pass == HeadPass::gradient; }
    [[nodiscard]] std::uint32_t tied_block() const { return is_own ? 0 : block; }
  };
  [[nodiscard]] LossVisit begin_loss(std::uint32_t block, MicroBatches range, HeadPass pass);
  void append_loss(const LossVisit& visit, std::uint32_t m, const Buffer& input);
  void write_loss_gradients(OpDraft& loss, const LossVisit& visit);
  [[nodiscard]] Buffer input_of(std::uint32_t layer, std::uint32_t m, bool again, bool begins);
  void save_part(OpDraft& forward, std::uint32_t part, const Buffer& kept) const;
  /// Whether the backward of a layer recomputes it in the same op.
  [[nodiscard]] bool runs_forward_in_backward(std::uint32_t layer) const {
    return !workload_.operator_tiles && recomputes(layer);
  }
  void read_layer(OpDraft& backward, const Buffer& weights, const Buffer& kept) const;
  void meet_tiles(OpDraft& draft, std::uint32_t layer, std::uint32_t part,
                  std::uint32_t parts) const;
  void meet_tiles_of_head(OpDraft& draft, std::uint32_t part, bool train) const;
};

/// Passes of a rank of a tensor group, with what its ranks add up: the outputs of blocks, the
/// gradients of their norms' outputs, and gradients of parameters that all its ranks have. A visit
/// goes through all of its micro-batches before it goes on from a sum, so that one is under way
/// while another micro-batch computes.
///
/// Where the ranks share out tokens, a sum goes to each for its own tokens, and what matrices read
/// is gathered: the norm's output for each pass, and in backward the gradient too.
class GroupPasses final : public PassWriter {
 public:
  GroupPasses(StepDraft& step, const Ways& ways) : PassWriter(step, ways) {}
  void visit_forward(std::uint32_t block, MicroBatches range, bool train) override;
  void visit_head(MicroBatches range, bool train) override;
  void backward_layer(std::uint32_t layer, MicroBatches range) override;

 private:
  /// What the passes of a head read and add to.
  struct HeadVisit {
    std::uint32_t block = 0;
    Buffer weights, borrowed;
    Buffer accumulator{};
  };
  [[nodiscard]] Buffer between(std::uint32_t m) const { return {PoolKind::between_tiles, m}; }
  /// Returns what a rank adds to a sum, and where; an all-reduce makes the sum there.
  [[nodiscard]] Access addend_of(const Access& sum) const;
  [[nodiscard]] Access norm_gradient(std::uint32_t layer, std::uint32_t m) const;
  [[nodiscard]] Access gathered_normal(std::uint32_t layer, std::uint32_t m) const;
  [[nodiscard]] Access gathered_gradient(std::uint32_t layer, std::uint32_t m) const;
  /// Appends the collective that makes the ranks' addends their sum.
  void sum_passes(std::uint32_t block, const Access& sum);
  void append_forward(OpDraft forward, bool train);
  void gather_normal(const OpDraft& reads, const Buffer& input);
  void gather_gradient(std::uint32_t block, std::uint32_t m);
  void visit_backward(std::uint32_t block, MicroBatches range);
  void begin_backward(std::uint32_t block, std::uint32_t m, const Buffer& weights,
                      const Buffer& accumulator);
  void finish_backward(std::uint32_t block, std::uint32_t m, const Buffer& weights,
                       const Buffer& accumulator);
  [[nodiscard]] HeadVisit begin_head(MicroBatches range, bool train);
  [[nodiscard]] OpDraft draft_of_head(const HeadVisit& head, std::uint32_t m) const;
  void read_hidden(OpDraft& loss, const HeadVisit& head, std::uint32_t m) const;
  void scan_head(const HeadVisit& head, std::uint32_t m);
  void loss_of_rank(const HeadVisit& head, std::uint32_t m, bool train);
  void finish_head(const HeadVisit& head, std::uint32_t m);
};

}  // namespace spillway::plan
