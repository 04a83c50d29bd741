#include "runtime/model/tensor_part.hpp"

#include <fmt/format.h>

#include "runtime/base/error.hpp"

namespace spillway::model {

std::uint64_t own_tokens(const TensorPart& part, std::uint64_t tokens) {
  if (!part.sequence) return tokens;
  check(tokens % part.count == 0, ErrorCode::invalid_argument,
        fmt::format("spillway.sequence_parallel shares out the tokens of a micro-batch, and {} "
                    "tokens do not divide among {} ranks; change the context or the micro-batch",
                    tokens, part.count));
  return tokens / part.count;
}

HeadShare heads_of(const ModelConfig& config, const TensorPart& part) {
  const std::uint64_t group = config.heads / config.kv_heads;  // query heads that read the same
  if (part.count <= config.kv_heads) {
    const PartRange keys = part.of(config.kv_heads);
    return {.queries = {keys.first * group, keys.end * group}, .keys = keys};
  }
  const std::uint32_t fewest = part.count / config.kv_heads;  // ranks that have the first one
  const std::uint32_t first_with_more = config.kv_heads - part.count % config.kv_heads;
  std::uint32_t head = 0;
  TensorPart among{.index = part.index, .count = fewest};  // the ranks of `head`
  while (among.index >= among.count) {
    among.index -= among.count;
    among.count = fewest + (++head >= first_with_more ? 1 : 0);
  }
  const PartRange own = among.of(group);
  return {.queries = {head * group + own.first, head * group + own.end},
          .keys = {head, head + std::uint64_t{1}},
          .shares_keys = true};
}

ModelConfig config_of_part(const ModelConfig& config, const TensorPart& part) {
  if (!part.cuts()) return config;
  const std::uint32_t most = std::min({config.heads, config.ffn_width, config.vocab_size});
  check(part.count <= most, ErrorCode::invalid_argument,
        fmt::format("a tensor group of {} ranks, and the model has {} heads, {} columns of the MLP "
                    "and {} tokens to share out; use at most {} ranks",
                    part.count, config.heads, config.ffn_width, config.vocab_size, most));
  check(
      config.width % 2 == 0, ErrorCode::invalid_argument,
      fmt::format("a tensor group needs a model of even width, and this one has {}", config.width));
  ModelConfig own = config;
  const HeadShare heads = heads_of(config, part);
  own.heads = static_cast<std::uint32_t>(heads.queries.size());
  own.kv_heads = static_cast<std::uint32_t>(heads.keys.size());
  own.ffn_width = static_cast<std::uint32_t>(part.of(config.ffn_width).size());
  return own;
}

}  // namespace spillway::model
