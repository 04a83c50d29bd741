// Hugging Face checkpoints in and out: config.json and safetensors, single file or sharded.
// Both directions stream: a model is never in memory as a whole.
//
// Threads: reading is const, any number at once; a writer belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "runtime/base/units.hpp"
#include "runtime/model/hf/safetensors.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/model/parameter_layout.hpp"
#include "runtime/model/parameter_source.hpp"

namespace spillway::model {

namespace detail {
class StagingDirectory;
}

/// Reads the weights of a directory, checked against a layout: `model.safetensors` or the shards of
/// `model.safetensors.index.json`; names with and without the model's prefix ("transformer.",
/// "model."). Buffers that old checkpoints carry (attention masks, rotary frequencies) are skipped.
class CheckpointReader final : public ParameterSource {
 public:
  /// Opens every file and matches every tensor. Throws `Error{invalid_argument | corrupt_data |
  /// not_supported}` naming the tensor that is missing, extra, misshapen, stored twice or of a type
  /// that holds no weights, or a `lm_head.weight` that differs from the embedding it is tied to.
  /// `layout` must outlive this.
  CheckpointReader(const std::filesystem::path& directory, const ModelConfig& config,
                   const ModelLayout& layout);

  /// Throws `Error{corrupt_data}` naming the tensor for a weight that is not finite.
  void read(BlockIndex block, ElementCount first, std::span<float> target) const override;
  /// Type that the embedding is stored in.
  [[nodiscard]] DType dtype() const;

 private:
  struct Source {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
  };
  class Matcher;

  void check_tied_head(const Source& head) const;

  const ModelLayout* layout_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<std::vector<Source>> sources_;  ///< [block][tensor] of the layout
};

enum class IfExists : std::uint8_t {
  refuse,   ///< an error, unless the directory is empty
  replace,  ///< what is written is replaced, other files stay
};

struct SaveOptions {
  DType dtype = DType::fp32;
  Bytes max_shard{5'000'000'000};  ///< of tensor data; a tensor larger than this has its own shard
  IfExists if_exists = IfExists::refuse;
};

/// Writes a checkpoint that transformers loads. Works in a hidden directory beside the target,
/// which takes its name when all is durable: a half-written export is never visible. What a killed
/// process left there is removed by the next writer of that target.
class CheckpointWriter {
 public:
  /// `layout` must outlive this. Throws `Error{busy}` if another process writes the same target.
  CheckpointWriter(const std::filesystem::path& directory, const ModelConfig& config,
                   const ModelLayout& layout, SaveOptions options);
  CheckpointWriter(CheckpointWriter&&) = delete;
  CheckpointWriter& operator=(CheckpointWriter&&) = delete;
  /// Leaves the target as it was unless `finish` was called.
  ~CheckpointWriter();

  /// Takes the next elements of `block`, of type `source`. Blocks come in order, each from its
  /// first element to its last; padding may be given or left out. fp32 becomes bf16 as parameters
  /// do (`parameter_to_bf16`). Throws `Error{invalid_argument}` naming the tensor if a finite
  /// weight is beyond the range of the type to be stored.
  void append(BlockIndex block, std::span<const std::byte> elements, DType source);
  /// Adds a small file of the checkpoint besides weights and config.json, such as a tokenizer's.
  void add_file(std::string_view name, std::string_view content);
  /// Writes config.json and the index, and gives the checkpoint its name.
  void finish();

 private:
  struct Shard {
    std::string name;
    std::vector<TensorToStore> tensors;
    Bytes size;
  };

  void plan_shards();
  void next_tensor(const ParameterTensor& done);
  void append_to_tensor(std::span<const std::byte> elements, DType source);
  void write_index() const;

  const ModelLayout* layout_;
  SaveOptions options_;
  std::string config_json_;
  std::unique_ptr<detail::StagingDirectory> staging_;
  std::vector<Shard> shards_;
  std::size_t shard_ = 0;  ///< being written
  std::size_t tensor_in_shard_ = 0;
  std::unique_ptr<SafetensorsWriter> writer_;
  BlockIndex block_;            ///< the next element to come is in this block,
  std::size_t tensor_ = 0;      ///< in this tensor of it (all: padding),
  std::uint64_t position_ = 0;  ///< at this element of the block
};

}  // namespace spillway::model
