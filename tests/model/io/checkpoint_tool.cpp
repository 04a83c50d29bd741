// What tests/model/io/transformers_test.py runs on our side.
//   copy SOURCE TARGET DTYPE MAX_SHARD_BYTES   read an HF checkpoint, write it again
//   make FAMILY TARGET                         a random model whose config.json is all ours
//   describe CONFIG_JSON                       what we understood, one "name value" a line
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/model/hf/checkpoint.hpp"
#include "runtime/model/initialize.hpp"
#include "tests/model/io/families.hpp"

namespace spillway::model {
namespace {

/// Streams in pieces of a tile's size, as a run does.
void write(const std::filesystem::path& target, const ModelConfig& config,
           const ModelLayout& layout, const ParameterSource& source, SaveOptions options) {
  CheckpointWriter writer(target, config, layout, options);
  std::vector<float> tile(kLeafParameters);
  for (std::uint32_t b = 0; b < layout.blocks.size(); ++b) {
    const std::uint64_t padded = layout.blocks[b].padded_parameters.value();
    for (std::uint64_t first = 0; first < padded; first += tile.size()) {
      const auto part = std::span(tile).first(std::min<std::uint64_t>(tile.size(), padded - first));
      source.read(BlockIndex{b}, ElementCount{first}, part);
      writer.append(BlockIndex{b}, std::as_bytes(part), DType::fp32);
    }
  }
  writer.finish();
}

void copy(const std::filesystem::path& from, const std::filesystem::path& to,
          const SaveOptions& options) {
  const ModelConfig config = load_model_config(from / "config.json");
  const ModelLayout layout = make_layout(config);
  write(to, config, layout, CheckpointReader(from, config, layout), options);
}

void make(const std::string& family, const std::filesystem::path& to) {
  for (const auto& [name, config] : testing::all_families()) {
    if (name != family) continue;
    const ModelLayout layout = make_layout(config);
    write(to, config, layout, RandomInitializer(config, layout, 5), {});
    return;
  }
  throw Error(ErrorCode::invalid_argument, "no family " + family);
}

void describe(const std::filesystem::path& path) {
  const ModelConfig config = load_model_config(path);
  fmt::print("family {}\nvocab_size {}\nmax_context {}\nlayers {}\nwidth {}\nheads {}\n",
             name_of(config.family), config.vocab_size, config.max_context, config.layers,
             config.width, config.heads);
  fmt::print("kv_heads {}\nhead_dim {}\nffn_width {}\nactivation {}\nnorm_eps {}\ntied_head {}\n",
             config.kv_heads, config.head_dim, config.ffn_width,
             static_cast<int>(config.activation), config.norm_eps, config.tied_head);
  fmt::print("rope_theta {}\nlinear {}\n", config.rope_theta,
             config.rope_linear_factor.value_or(0));
  if (config.rope_llama3) {
    fmt::print("llama3 {} {} {} {}\n", config.rope_llama3->factor,
               config.rope_llama3->low_frequency_factor, config.rope_llama3->high_frequency_factor,
               config.rope_llama3->original_context);
  }
  fmt::print("sliding_window {}\n", config.sliding_window.value_or(0));
}

int run(std::span<char*> arguments) {
  const std::vector<std::string> words(arguments.begin(), arguments.end());
  if (words.size() == 6 && words[1] == "copy") {
    copy(words[2], words[3],
         {.dtype = parse_dtype(words[4]), .max_shard = Bytes{std::stoull(words[5])}});
  } else if (words.size() == 4 && words[1] == "make") {
    make(words[2], words[3]);
  } else if (words.size() == 3 && words[1] == "describe") {
    describe(words[2]);
  } else {
    fmt::print(stderr, "see the head of the source for usage\n");
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace spillway::model

int main(int count, char** arguments) {
  try {
    return spillway::model::run({arguments, static_cast<std::size_t>(count)});
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
