// A head whose projection is cut into tiles of the vocabulary: final norm, cross-entropy and its
// gradient in two passes over the tiles. The first scans the logits of each tile and ends in the
// loss; the second, in reverse order, makes them again for the gradient. Within a tile the logits
// are made in chunks of tokens, as in Head.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "runtime/model/carver.hpp"
#include "runtime/model/head_chunk.hpp"
#include "runtime/model/tensor_range.hpp"
#include "runtime/model/transformer.hpp"

namespace spillway::model {

class TiledHead {
 public:
  /// `blocks`: the head's; `vectors`: its norm's weight, as a block of its own.
  TiledHead(const ModelConfig& config, BatchShape batch, std::span<const BlockLayout> blocks,
            const BlockLayout& vectors, Ops& ops);

  [[nodiscard]] Bytes workspace_bytes() const { return workspace_bytes_; }
  [[nodiscard]] Bytes carried_bytes() const { return carried_bytes_; }
  [[nodiscard]] double forward_flops(std::uint32_t tile) const;

  /// `shared` of the arguments is the head's own part of the vectors; `tile` counts its blocks.
  void loss(std::uint32_t tile, const LossArguments& arguments);

 private:
  struct Tile {
    std::uint64_t first_row = 0;  ///< of the vocabulary
    std::uint64_t rows = 0;
    ChunkPlans full, tail;
  };
  struct Space {
    Tensor normal, normal_gradient;
    offload::DeviceSpan<float> statistics, logits;
    Tensor logits_gradient;
    Tensor ops;
  };
  struct Carried {
    offload::DeviceSpan<VocabularyScan> scans;  ///< [T]
    offload::DeviceSpan<float> normal;          ///< [T, W] sum: gradient of the norm's output
  };

  [[nodiscard]] std::uint64_t tokens() const;
  Space carve_space(Carver& carver) const;
  Carried carve_carried(Carver& carver) const;
  void scan(const Tile& tile, const LossArguments& a, const Space& space, const Carried& carried);
  void differentiate(const Tile& tile, const LossArguments& a, const Space& space,
                     const Carried& carried);
  void backward_norm(const LossArguments& a, const Space& space, const Carried& carried);
  /// Calls visit(first token, tokens, plans) for each chunk.
  template <class Visit>
  void for_chunks(const Tile& tile, Visit visit);
  VocabularyTile project(const Tile& tile, const ChunkPlans& plans, const LossArguments& a,
                         const Space& space, std::uint64_t first, std::uint64_t rows);

  ModelConfig config_;
  BatchShape batch_;
  Ops* ops_;
  NormShape norm_;
  TensorRange norm_weight_;
  std::vector<Tile> tiles_;
  std::uint64_t largest_tile_ = 0;
  std::uint64_t chunk_ = 0;
  Bytes ops_workspace_, workspace_bytes_, carried_bytes_;
};

}  // namespace spillway::model
