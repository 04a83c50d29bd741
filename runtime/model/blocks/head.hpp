// The head: final norm, vocabulary projection, cross-entropy with its gradient, logits. Its parts
// (LayerParts) have rows of the projection, or all of them. Within a part the logits are made in
// chunks of tokens, so that they take chunk x vocabulary.
//
// A head of one part makes loss and gradient together, chunk by chunk. One that is cut makes two
// passes over its parts: the first scans the logits of each and ends in the loss; the second, in
// reverse order, makes them again for the gradient.
//
// In a tensor group, a head has one part of the projection and runs in three passes (LossPass),
// between which the ranks exchange what they know of each token, and add up the
// gradient of the norm's output (Shoeybi et al. 2019, section 3).
#pragma once

#include <optional>
#include <vector>

#include "runtime/model/blocks/bump_allocator.hpp"
#include "runtime/model/blocks/head_chunk.hpp"
#include "runtime/model/blocks/layer_parts.hpp"
#include "runtime/model/transformer.hpp"

namespace spillway::model::blocks {

class Head {
 public:
  /// Takes in `projection` the blocks that begin with rows of the projection, which are the head's
  /// own or, where it is tied, the embedding's; and in `vectors` the block that has the head's.
  Head(const ModelConfig& config, BatchShape batch, const LayerParts& projection,
       const BlockLayout& vectors, Ops& ops);

  [[nodiscard]] Bytes workspace_bytes() const { return workspace_bytes_; }
  [[nodiscard]] Bytes carried_bytes() const { return carried_bytes_; }
  [[nodiscard]] double forward_flops(std::uint32_t part) const;

  /// Runs `part` of the loss. `parameters` and `gradients` are those of the block with the
  /// projection; `shared` and `shared_gradients` have the head's own vectors.
  void loss(std::uint32_t part, const LossArguments& arguments);
  void normalize(const NormalizeArguments& arguments);
  /// Writes the logits of a head of one part.
  void logits(const Transformer::LogitsArguments& arguments, ConstTensor vectors);

 private:
  struct Part {
    std::uint64_t first_row = 0;  ///< of the vocabulary
    std::uint64_t rows = 0;
    TensorRange weight;  ///< in its block
    ChunkPlans full, tail;
  };
  struct Space {
    Tensor normal, normal_gradient;
    ConstTensor hidden;  ///< [T, W] what is projected: `normal`, or what the group has gathered
    offload::DeviceSpan<float> statistics, logits;
    Tensor logits_gradient;
    Tensor ops;
  };
  /// What waits from part to part; in a tensor group, `normal` alone, of elements of C.
  struct Carried {
    offload::DeviceSpan<VocabularyScan> scans;  ///< [T]
    Tensor normal;                              ///< [T, W] sum, fp32: gradient of the norm's output
  };
  struct Chunk {
    std::uint64_t first = 0;  ///< token
    std::uint64_t tokens = 0;
    const ChunkPlans* plans = nullptr;
  };

  [[nodiscard]] std::uint64_t tokens() const;
  [[nodiscard]] std::vector<Part> make_parts(const LayerParts& projection, Ops& ops);
  Space allocate_space(BumpAllocator& allocator) const;
  Carried allocate_carried(BumpAllocator& allocator) const;
  /// Calls visit(chunk) for all tokens, in order.
  template <class Visit>
  void for_chunks(const Part& part, Visit visit) const;
  /// Returns the rows of `matrix` that belong to the chunk.
  template <class View>
  [[nodiscard]] View rows_of(View matrix, const Chunk& chunk) const;

  void apply_norm(NormShape shape, ConstTensor vectors, HeadRows<ConstTensor> input, Tensor out,
                  const Space& space);
  void project(const Part& part, const Chunk& chunk, ConstTensor parameters, const Space& space,
               offload::DeviceSpan<float> logits);
  [[nodiscard]] VocabularyTile tile_of(const Part& part, const Chunk& chunk, Tokens targets,
                                       const Space& space) const;
  void lose_whole(const Part& part, const LossArguments& a, const Space& space);
  void scan(const Part& part, const LossArguments& a, const Space& space, const Carried& carried);
  void differentiate(const Part& part, const LossArguments& a, const Space& space,
                     const Carried& carried);
  void pass_of_group(const Part& part, const LossArguments& a, const Space& space);
  /// Adds what the chunk's gradient of the logits gives to the gradients of the projection and,
  /// in `normal_gradient`, of its input.
  void backward_chunk(const Part& part, const Chunk& chunk, const LossArguments& a,
                      Tensor normal_gradient, const Space& space);
  void backward_norm(const LossArguments& a, ConstTensor gradient, const Space& space);

  ModelConfig config_;
  BatchShape batch_;
  Ops* ops_;
  bool cut_;
  bool grouped_;  ///< a tensor group has the projection
  TensorPart part_;
  NormShape norm_;
  TensorRange norm_weight_;
  std::optional<TensorRange> norm_bias_;
  std::uint64_t largest_part_ = 0;  ///< rows
  std::uint64_t chunk_ = 0;         ///< tokens
  std::vector<Part> parts_;
  GemmPlan last_positions_;  ///< of a head of one part
  Bytes ops_workspace_, workspace_bytes_, carried_bytes_;
};

}  // namespace spillway::model::blocks
