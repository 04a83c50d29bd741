// A model that a tensor group shares out, on one device: what the engine does with the parts, in
// the simplest way, with the parameters of a whole model. Sums over the group are the test's own.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/model/part_map.hpp"
#include "tests/model/model_harness.hpp"

namespace spillway::model {

/// The parameters of a whole model as a source.
class WholeParameters final : public ParameterSource {
 public:
  explicit WholeParameters(const ModelHarness& whole) {
    for (std::uint32_t b = 0; b < whole.blocks(); ++b) blocks_.push_back(whole.parameters(b));
  }
  void read(BlockIndex block, ElementCount first, std::span<float> target) const override {
    const auto begin = blocks_.at(block.value()).begin();
    std::copy_n(begin + static_cast<std::ptrdiff_t>(first.value()), target.size(), target.begin());
  }

 private:
  std::vector<std::vector<float>> blocks_;
};

/// One part: what one rank of the group has.
class PartHarness {
 public:
  PartHarness(const ModelConfig& config, BatchShape batch, std::unique_ptr<Ops> ops,
              const TensorPart& part)
      : map(config, part),
        compute(ops->compute()),
        ops_(std::move(ops)),
        transformer(config, batch, compute, *ops_, part),
        workspace(transformer.workspace_bytes().value()),
        scans(std::size_t{batch.batch} * batch.sequence * sizeof(VocabularyScan)),
        constants_(std::span<const float>(transformer.constants())) {
    transformer.bind_constants(constants_.device().as<const float>());
    for (std::uint32_t b = 0; b < blocks(); ++b) {
      const std::uint64_t padded = layout().blocks[b].padded_parameters.value();
      parameters.emplace_back(padded * size_of(compute));
      gradients.emplace_back(padded * sizeof(float));
      saved.emplace_back(transformer.saved_bytes(b).value());
    }
    carried = TestMemory(transformer.carried_bytes().value());
    tied_gradients = TestMemory(layout().blocks[0].tensors[0].count.value() * sizeof(float));
  }

  [[nodiscard]] const ModelLayout& layout() const { return transformer.layout(); }
  [[nodiscard]] std::uint32_t blocks() const {
    return static_cast<std::uint32_t>(transformer.layout().blocks.size());
  }
  void copy_parameters(const ParameterSource& whole) {
    for (std::uint32_t b = 0; b < blocks(); ++b) {
      std::vector<float> values(layout().blocks[b].padded_parameters.value());
      PartView(whole, map).read(BlockIndex{b}, ElementCount{}, values);
      parameters[b] = encode(values, compute);
    }
  }

  PartMap map;
  DType compute;
  std::unique_ptr<Ops> ops_;
  Transformer transformer;
  TestMemory workspace, scans, carried, tied_gradients;
  std::vector<TestMemory> parameters, gradients, saved;

 private:
  TestMemory constants_;
};

class GroupHarness {
 public:
  /// `kind` says how many ranks there are, and whether they share out tokens.
  template <class MakeOps>
  GroupHarness(const ModelConfig& config, BatchShape batch, const TensorPart& kind,
               const MakeOps& make_ops)
      : config_(config), batch_(batch), sequence_(kind.sequence) {
    const std::uint32_t ranks = kind.count;
    for (std::uint32_t i = 0; i < ranks; ++i) {
      TensorPart part = kind;
      part.index = i;
      parts_.push_back(std::make_unique<PartHarness>(config, batch, make_ops(), part));
    }
    const std::size_t tokens = std::size_t{batch.batch} * batch.sequence;
    tokens_ = TestMemory(tokens * sizeof(std::int32_t));
    targets_ = TestMemory(tokens * sizeof(std::int32_t));
    gathered_ = TestMemory(ranks * tokens * sizeof(VocabularyScan));
    const std::size_t boundary = parts_[0]->transformer.summed_bytes().value();
    for (std::uint32_t b = 0; b < parts_[0]->blocks(); ++b) boundaries_.emplace_back(boundary);
    gradient_ = TestMemory(boundary);
    normal_ = TestMemory(boundary);
  }

  [[nodiscard]] PartHarness& part(std::uint32_t index) { return *parts_[index]; }
  void copy_parameters(const ModelHarness& whole) {
    for (const auto& part : parts_) part->copy_parameters(WholeParameters(whole));
  }
  [[nodiscard]] const TestMemory& boundary(std::uint32_t block) const { return boundaries_[block]; }
  [[nodiscard]] const TestMemory& boundary_gradient() const { return gradient_; }

  /// As ModelHarness::step.
  double step(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
              float scale, bool first, Activations activations = Activations::kept) {
    std::memcpy(tokens_.data(), tokens.data(), tokens_.size());
    std::memcpy(targets_.data(), targets.data(), targets_.size());
    const std::uint32_t head = parts_[0]->blocks() - 1;
    for (std::uint32_t b = 0; b < head; ++b) forward(b);
    const double sum = lose(head, scale, first);
    for (std::uint32_t b = head; b-- > 1;) backward(b, first, activations);
    for (const auto& part : parts_) {
      part->transformer.backward({.block = 0,
                                  .parameters = {},
                                  .tokens = tokens_.device().as<const std::int32_t>(),
                                  .input = {},
                                  .saved = {},
                                  .boundary_gradient = gradient_.device(),
                                  .gradients = part->gradients[0].device().as<float>(),
                                  .first = first,
                                  .workspace = part->workspace.device()});
    }
    return sum;
  }

  /// After the last micro-batch: adds up what each part has a part of.
  void sum_partial_gradients() {
    for (std::uint32_t b = 0; b < parts_[0]->blocks(); ++b) {
      const BlockLayout& block = parts_[0]->layout().blocks[b];
      std::vector<std::span<float>> addends;
      for (const auto& part : parts_) addends.push_back(part->gradients[b].as<float>());
      for (std::uint64_t e = block.partial_first.value(); e < block.parameters.value(); ++e) {
        float total = 0;
        for (const std::span<float> addend : addends) total += addend[e];
        for (const std::span<float> addend : addends) addend[e] = total;
      }
      for (const auto& part : parts_) static_cast<void>(part->gradients[b].device());
    }
  }

  /// Gradients of a block of the whole model, from all parts.
  [[nodiscard]] std::vector<float> gradients(std::uint32_t block, std::uint64_t parameters) const {
    std::vector<float> all(parameters);
    for (const auto& part : parts_) {
      std::vector<std::span<const float>> blocks;
      for (const TestMemory& gradients : part->gradients) blocks.push_back(gradients.as<float>());
      part->map.visit_part(
          BlockIndex{block}, ElementCount{}, ElementCount{parameters}, [&](const PartRun& run) {
            const auto from = blocks[run.block.value()].subspan(run.first.value(), run.count);
            std::ranges::copy(from, all.begin() + std::ptrdiff_t(run.at));
          });
    }
    return all;
  }
  /// Those of a tied head's use of the embedding.
  [[nodiscard]] std::vector<float> tied_gradients() const {
    std::vector<float> all;
    for (const auto& part : parts_) {
      const auto rows = part->tied_gradients.as<float>();
      all.insert(all.end(), rows.begin(), rows.end());
    }
    return all;
  }

 private:
  /// Adds what the parts have made, in their order, as ranks do: in fp32, rounded once.
  void sum(TestMemory& target, const std::vector<TestMemory>& addends) const {
    const DType compute = parts_[0]->compute;
    std::vector<float> total = decode(addends[0], compute);
    for (std::size_t i = 1; i < addends.size(); ++i) {
      const std::vector<float> more = decode(addends[i], compute);
      for (std::size_t e = 0; e < total.size(); ++e) total[e] += more[e];
    }
    target = encode(total, compute);
  }

  /// What a part has of all tokens' rows: its own, or all.
  [[nodiscard]] Tensor rows_of(const TestMemory& memory, std::size_t part) const {
    const std::size_t bytes = memory.size() / (sequence_ ? parts_.size() : 1);
    return memory.device().subspan(sequence_ ? part * bytes : 0, bytes);
  }
  [[nodiscard]] ConstTensor input_of(std::uint32_t block, std::size_t part) const {
    return block == 0 ? ConstTensor{} : ConstTensor(rows_of(boundaries_[block - 1], part));
  }
  /// Where tokens are shared out, each part makes its rows of the norm's output.
  void normalize(std::uint32_t block) {
    if (!sequence_ || block == 0) return;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      parts_[i]->transformer.normalize({.block = block,
                                        .parameters = parts_[i]->parameters[block].device(),
                                        .input = input_of(block, i),
                                        .output = rows_of(normal_, i),
                                        .workspace = parts_[i]->workspace.device()});
    }
  }

  void forward(std::uint32_t block) {
    normalize(block);
    std::vector<TestMemory> made;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const auto& part = parts_[i];
      made.emplace_back(gradient_.size());
      part->transformer.forward({.block = block,
                                 .parameters = part->parameters[block].device(),
                                 .tokens = tokens_.device().as<const std::int32_t>(),
                                 .input = input_of(block, i),
                                 .normal = normal_.device(),
                                 .output = made.back().device(),
                                 .saved = part->saved[block].device(),
                                 .workspace = part->workspace.device()});
    }
    sum(boundaries_[block], made);
  }

  void sum_carried() {
    std::vector<TestMemory> made;
    for (const auto& part : parts_) {
      made.emplace_back(gradient_.size());
      std::memcpy(made.back().data(), part->carried.data(), gradient_.size());
    }
    TestMemory total(gradient_.size());
    sum(total, made);
    const std::size_t own = total.size() / (sequence_ ? parts_.size() : 1);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      std::memcpy(parts_[i]->carried.data(), total.data() + (sequence_ ? i * own : 0), own);
    }
  }

  double lose(std::uint32_t head, float scale, bool first) {
    normalize(head);
    const auto call = [&](std::size_t i, LossPass pass) {
      PartHarness& part = *parts_[i];
      const bool finishes = pass == LossPass::finish;
      part.transformer.loss({.parameters = part.parameters[head].device(),
                             .tied_parameters = config_.tied_head
                                                    ? ConstTensor(part.parameters[0].device())
                                                    : ConstTensor{},
                             .targets = targets_.device().as<const std::int32_t>(),
                             .input = input_of(head, i),
                             .loss_sum = loss_sum_.device().as<double>(),
                             .gradient_scale = scale,
                             .boundary_gradient = finishes ? rows_of(gradient_, i) : Tensor{},
                             .carried = pass == LossPass::scan ? Tensor{} : part.carried.device(),
                             .gradients = part.gradients[head].device().as<float>(),
                             .tied_gradients = part.tied_gradients.device().as<float>(),
                             .first = first,
                             .pass = pass,
                             .normal = normal_.device(),
                             .scans = part.scans.device().as<VocabularyScan>(),
                             .gathered = gathered_.device().as<const VocabularyScan>(),
                             .workspace = part.workspace.device()});
    };
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      call(i, LossPass::scan);
      std::memcpy(gathered_.data() + i * parts_[i]->scans.size(), parts_[i]->scans.data(),
                  parts_[i]->scans.size());
    }
    for (std::size_t i = 0; i < parts_.size(); ++i) call(i, LossPass::gradient);
    sum_carried();
    for (std::size_t i = 0; i < parts_.size(); ++i) call(i, LossPass::finish);
    return loss_sum_.as<double>()[0];
  }

  void backward(std::uint32_t block, bool first, Activations activations) {
    TestMemory before(gradient_.size());
    std::memcpy(before.data(), gradient_.data(), gradient_.size());
    normalize(block);
    const auto arguments = [&](std::size_t i) {
      PartHarness& part = *parts_[i];
      return BackwardArguments{.block = block,
                               .parameters = part.parameters[block].device(),
                               .tokens = {},
                               .input = input_of(block, i),
                               .normal = normal_.device(),
                               .saved = part.saved[block].device(),
                               .carried = part.carried.device(),
                               .boundary_gradient = gradient_.device(),
                               .gradients = part.gradients[block].device().as<float>(),
                               .first = first,
                               .workspace = part.workspace.device()};
    };
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const auto& part = parts_[i];
      if (activations == Activations::recomputed) {
        std::memset(part->saved[block].data(), 0xff, part->saved[block].size());
        part->transformer.forward({.block = block,
                                   .parameters = part->parameters[block].device(),
                                   .tokens = {},
                                   .input = input_of(block, i),
                                   .normal = normal_.device(),
                                   .output = {},
                                   .saved = part->saved[block].device(),
                                   .workspace = part->workspace.device()});
      }
      part->transformer.backward(arguments(i));
    }
    sum_carried();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      // Each has a gradient of its own: those of its tokens, or all the same.
      if (!sequence_) std::memcpy(gradient_.data(), before.data(), gradient_.size());
      BackwardArguments own = arguments(i);
      own.boundary_gradient = rows_of(gradient_, i);
      parts_[i]->transformer.finish_backward(own);
    }
  }

  ModelConfig config_;
  BatchShape batch_;
  bool sequence_;
  std::vector<std::unique_ptr<PartHarness>> parts_;
  TestMemory tokens_, targets_, gathered_, gradient_, normal_;
  TestMemory loss_sum_{sizeof(double)};
  std::vector<TestMemory> boundaries_;
};

}  // namespace spillway::model
