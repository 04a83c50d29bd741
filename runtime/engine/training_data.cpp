#include "runtime/engine/training_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "nvme_swap/tile_store.hpp"
#include "runtime/base/error.hpp"

namespace spillway::engine {

TrainingData TrainingData::open(const std::filesystem::path& directory,
                                const model::ModelConfig& config) {
  const data::Meta meta = data::load_meta(directory / "meta.json");
  check(meta.vocab_size <= config.vocab_size, ErrorCode::invalid_argument,
        fmt::format("{} holds tokens of a vocabulary of {}, and the model's is {}",
                    directory.string(), meta.vocab_size, config.vocab_size));
  TrainingData data{meta, data::TokenFile(directory / "train.bin", meta.dtype), std::nullopt};
  if (std::filesystem::exists(directory / "val.bin")) {
    data.validation.emplace(directory / "val.bin", meta.dtype);
  }
  return data;
}

std::uint64_t TrainingData::fingerprint(std::uint32_t vocab_size) const {
  const std::uint64_t part = std::min<std::uint64_t>(train.size(), 65536);
  std::vector<std::int32_t> tokens(2 * part + 2);
  train.read(0, std::span(tokens).first(part), vocab_size);
  train.read(train.size() - part, std::span(tokens).subspan(part, part), vocab_size);
  tokens[2 * part] = static_cast<std::int32_t>(train.size() & 0x7fffffffU);
  tokens[2 * part + 1] = static_cast<std::int32_t>(train.size() >> 31);
  return nvme_swap::checksum_of(std::as_bytes(std::span(tokens)));
}

}  // namespace spillway::engine
