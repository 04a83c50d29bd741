#include "tools/bench/model_shapes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "runtime/base/error.hpp"
#include "tools/bench/suggestion.hpp"

namespace spillway::bench {
namespace {

using model::Family;

/// A row of the table: what differs between the families' published config.json files.
struct Shape {
  std::string_view name;
  Family family;
  std::uint32_t vocabulary;
  std::uint32_t context;
  std::uint32_t layers;
  std::uint32_t width;
  std::uint32_t heads;
  std::uint32_t kv_heads;
  std::uint32_t ffn;
  double rope_theta = 10000;
  std::uint32_t head_dim = 128;
};

// The config.json files that the models were published with. `small` is nobody's: the model of
// docs/measurements.md, which two CPU cores train in seconds.
constexpr std::array kShapes = {
    Shape{"small", Family::gpt2, 256, 256, 6, 384, 6, 6, 1536, 10000, 64},
    Shape{"gpt2", Family::gpt2, 50257, 1024, 12, 768, 12, 12, 3072, 10000, 64},
    Shape{"gpt2-xl", Family::gpt2, 50257, 1024, 48, 1600, 25, 25, 6400, 10000, 64},
    Shape{"llama-2-7b", Family::llama, 32000, 4096, 32, 4096, 32, 32, 11008},
    Shape{"llama-2-13b", Family::llama, 32000, 4096, 40, 5120, 40, 40, 13824},
    Shape{"llama-3-8b", Family::llama, 128256, 8192, 32, 4096, 32, 8, 14336, 500000},
    Shape{"llama-3-70b", Family::llama, 128256, 8192, 80, 8192, 64, 8, 28672, 500000},
    Shape{"mistral-7b", Family::mistral, 32000, 32768, 32, 4096, 32, 8, 14336, 1000000},
    Shape{"qwen2.5-7b", Family::qwen2, 152064, 131072, 28, 3584, 28, 4, 18944, 1000000},
    Shape{"qwen2.5-14b", Family::qwen2, 152064, 131072, 48, 5120, 40, 8, 13824, 1000000},
    Shape{"qwen2.5-32b", Family::qwen2, 152064, 131072, 64, 5120, 40, 8, 27648, 1000000},
    Shape{"qwen3-8b", Family::qwen3, 151936, 40960, 36, 4096, 32, 8, 12288, 1000000},
    Shape{"qwen3-14b", Family::qwen3, 151936, 40960, 40, 5120, 40, 8, 17408, 1000000},
    Shape{"qwen3-32b", Family::qwen3, 151936, 40960, 64, 5120, 64, 8, 25600, 1000000},
};

model::ModelConfig config_of(const Shape& shape) {
  const bool gpt2 = shape.family == Family::gpt2;
  const bool qwen3 = shape.family == Family::qwen3;
  model::ModelConfig config;
  config.family = shape.family;
  config.vocab_size = shape.vocabulary;
  config.max_context = shape.context;
  config.layers = shape.layers;
  config.width = shape.width;
  config.heads = shape.heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.ffn_width = shape.ffn;
  config.activation = gpt2 ? model::Activation::gelu_tanh : model::Activation::silu;
  config.norm_eps = qwen3 || shape.family == Family::qwen2 ? 1e-6 : 1e-5;
  config.tied_head = gpt2;
  config.qkv_bias = shape.family == Family::qwen2;
  config.qk_norm = qwen3;
  config.rope_theta = shape.rope_theta;
  model::validate(config);
  return config;
}

}  // namespace

std::vector<std::string_view> model_names() {
  std::vector<std::string_view> names;
  names.reserve(kShapes.size());
  for (const Shape& shape : kShapes) names.push_back(shape.name);
  return names;
}

namespace {

/// Returns what an unknown name was probably meant to be, else what there is.
std::string hint(std::string_view name) {
  constexpr std::size_t kMost = 3;
  const std::vector<std::string_view> all = model_names();
  const std::vector<std::string> names(all.begin(), all.end());
  const std::vector<std::string> near = nearest_first(name, names, kMost);
  std::string lower(name);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (const auto meant = nearest(lower, names)) return fmt::format("did you mean {}?", *meant);
  return fmt::format("names like it are {}.", fmt::join(near, ", "));
}

}  // namespace

model::ModelConfig model_named(std::string_view name) {
  const auto* const found = std::ranges::find(kShapes, name, &Shape::name);
  check(found != kShapes.end(), ErrorCode::invalid_argument,
        fmt::format("no model is called \"{}\" and no file has that path; {} All are {}", name,
                    hint(name), fmt::join(model_names(), ", ")));
  return config_of(*found);
}

model::ModelConfig model_from(const std::filesystem::path& name_or_path) {
  // A pipe or a device is refused by what it is, not taken for a name; a folder is no architecture.
  const bool path = std::filesystem::exists(name_or_path);
  if (path && !std::filesystem::is_directory(name_or_path)) {
    return model::load_model_config(name_or_path);
  }
  return model_named(name_or_path.string());
}

}  // namespace spillway::bench
