// Small checkpoints on disk, written and read whole, for the tests of this folder.
#pragma once

#include <algorithm>
#include <filesystem>
#include <span>
#include <vector>

#include "runtime/model/hf/checkpoint.hpp"
#include "runtime/model/initialize.hpp"

namespace spillway::model::testing {

using Blocks = std::vector<std::vector<float>>;

inline Blocks read_all(const ParameterSource& source, const ModelLayout& layout) {
  Blocks blocks;
  for (std::uint32_t b = 0; b < layout.blocks.size(); ++b) {
    // -1 where the source forgets to write.
    blocks.emplace_back(layout.blocks[b].padded_parameters.value(), -1.0F);
    source.read(BlockIndex{b}, ElementCount{0}, blocks.back());
  }
  return blocks;
}

inline Blocks random_blocks(const ModelConfig& config, const ModelLayout& layout) {
  return read_all(RandomInitializer(config, layout, 99), layout);
}

/// Block by block in pieces of odd sizes, with the padding.
inline void append_all(CheckpointWriter& writer, const Blocks& blocks) {
  std::size_t size = 1;
  for (std::uint32_t b = 0; b < blocks.size(); ++b) {
    std::span<const float> rest = blocks[b];
    while (!rest.empty()) {
      size = size * 5 % 4099 + 1;
      const auto part = rest.first(std::min(size, rest.size()));
      writer.append(BlockIndex{b}, std::as_bytes(part), DType::fp32);
      rest = rest.subspan(part.size());
    }
  }
}

inline void save(const std::filesystem::path& directory, const ModelConfig& config,
                 const Blocks& blocks, SaveOptions options = {}) {
  const ModelLayout layout = make_layout(config);
  CheckpointWriter writer(directory, config, layout, options);
  append_all(writer, blocks);
  writer.finish();
}

inline Blocks load(const std::filesystem::path& directory) {
  const ModelConfig config = load_model_config(directory / "config.json");
  const ModelLayout layout = make_layout(config);
  return read_all(CheckpointReader(directory, config, layout), layout);
}

}  // namespace spillway::model::testing
