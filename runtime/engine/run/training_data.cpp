#include "runtime/engine/run/training_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

#include "nvme_swap/format.hpp"
#include "runtime/base/error.hpp"

namespace spillway::engine {
namespace {

constexpr std::uint64_t kBlock = 64 << 10;  ///< tokens
/// Longer than the steps in which any file system counts time.
constexpr std::int64_t kSettledNs = 2'000'000'000;

std::int64_t now_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::uint64_t fingerprint_of(const data::TokenFile& file, std::uint32_t vocab_size) {
  const std::uint64_t size = file.size();
  std::vector<std::uint64_t> parts{size};
  std::vector<std::int32_t> tokens(std::min(size, kBlock));
  for (std::uint64_t first = 0; first < size; first += kBlock) {
    const auto part = std::span(tokens).first(std::min(kBlock, size - first));
    file.read(first, part, vocab_size);
    parts.push_back(nvme_swap::checksum_of(std::as_bytes(part)));
  }
  return nvme_swap::checksum_of(std::as_bytes(std::span(parts)));
}

void check_length(const data::TokenFile& tokens, const std::filesystem::path& path,
                  std::uint32_t context) {
  check(tokens.size() > context, ErrorCode::invalid_argument,
        fmt::format("{} holds {} tokens, and a window of spillway.context {} needs {}; give more "
                    "text, a shorter context, or remove the file to train without evaluation",
                    path.string(), tokens.size(), context, std::uint64_t{context} + 1));
}

}  // namespace

TrainingData TrainingData::open(const std::filesystem::path& directory,
                                const model::ModelConfig& config, std::uint32_t context) {
  const data::Meta meta = data::load_meta(directory / "meta.json");
  check(meta.vocab_size <= config.vocab_size, ErrorCode::invalid_argument,
        fmt::format("{} holds tokens of a vocabulary of {}, and the model's is {}",
                    directory.string(), meta.vocab_size, config.vocab_size));
  TrainingData data{.meta = meta,
                    .train = data::TokenFile(directory / "train.bin", meta.dtype),
                    .validation = std::nullopt};
  const std::filesystem::path validation = directory / "val.bin";
  if (std::filesystem::exists(validation)) {
    data.validation.emplace(validation, meta.dtype);
    check_length(*data.validation, validation, context);
    data.validation_fingerprint = fingerprint_of(*data.validation, config.vocab_size);
  }
  return data;
}

DataIdentity TrainingData::identity(std::uint32_t vocab_size, const DataIdentity& known) const {
  const data::FileStamp before = train.stamp();
  if (known.stamp == before) return known;
  const bool settled = now_ns() - before.changed_ns >= kSettledNs;
  DataIdentity identity{.fingerprint = fingerprint_of(train, vocab_size)};
  if (settled && train.stamp() == before) identity.stamp = before;
  return identity;
}

}  // namespace spillway::engine
