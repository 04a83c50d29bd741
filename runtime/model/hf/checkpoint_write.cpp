#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/model/hf/checkpoint.hpp"
#include "runtime/model/hf/staging_directory.hpp"

namespace spillway::model {
namespace {

constexpr std::size_t kWriteElements = 8192;

float load(const std::byte* element, DType dtype) {
  if (dtype == DType::fp32) {
    float value = 0;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, element, sizeof bits);
  return dtype == DType::bf16 ? from_bf16(bits) : from_fp16(bits);
}

/// Stores `value`; returns false if it is finite and the type cannot hold a number so large.
bool store(float value, DType dtype, std::byte* element) {
  if (dtype == DType::fp32) {
    std::memcpy(element, &value, sizeof value);
    return true;
  }
  const std::uint16_t bits = dtype == DType::bf16 ? parameter_to_bf16(value) : to_fp16(value);
  std::memcpy(element, &bits, sizeof bits);
  const float stored = dtype == DType::bf16 ? from_bf16(bits) : from_fp16(bits);
  return std::isfinite(stored) || !std::isfinite(value);
}

}  // namespace

CheckpointWriter::CheckpointWriter(const std::filesystem::path& directory,
                                   const ModelConfig& config, const ModelLayout& layout,
                                   SaveOptions options)
    : layout_(&layout),
      options_(options),
      config_json_(to_config_json(config, options.dtype)),
      staging_(std::make_unique<detail::StagingDirectory>(
          directory, options.if_exists == IfExists::replace
                         ? detail::TargetPolicy::replace
                         : detail::TargetPolicy::must_be_empty)) {
  plan_shards();
}

CheckpointWriter::~CheckpointWriter() = default;

/// Fills shards in layout order; the names need the number of shards, so they come last.
void CheckpointWriter::plan_shards() {
  for (const BlockLayout& block : layout_->blocks) {
    for (const ParameterTensor& tensor : block.tensors) {
      if (tensor.skipped > ElementCount{}) continue;  // has its place already
      const Bytes size{tensor.elements().value() * size_of(options_.dtype)};
      if (shards_.empty() || shards_.back().size + size > options_.max_shard) {
        shards_.emplace_back();
      }
      shards_.back().tensors.push_back({.name = tensor.name, .shape = tensor.shape});
      shards_.back().size += size;
    }
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].name = shards_.size() == 1
                          ? "model.safetensors"
                          : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards_.size());
  }
}

void CheckpointWriter::append(BlockIndex block, std::span<const std::byte> elements, DType source) {
  const std::size_t width = size_of(source);
  SPILLWAY_ASSERT(elements.size() % width == 0);
  const bool next_block = block.value() == block_.value() + 1 &&
                          position_ >= layout_->blocks.at(block_.value()).parameters.value();
  if (next_block) {
    block_ = block;
    tensor_ = 0;
    position_ = 0;
  }
  check(block == block_, ErrorCode::invalid_argument,
        fmt::format("block {} was given to the checkpoint while block {} is at element {}",
                    block.value(), block_.value(), position_));
  const BlockLayout& layout = layout_->blocks.at(block.value());
  check(position_ + elements.size() / width <= layout.padded_parameters.value(),
        ErrorCode::invalid_argument,
        fmt::format("block {} was given more than its {} elements", layout.name,
                    layout.padded_parameters.value()));
  while (!elements.empty() && tensor_ < layout.tensors.size()) {
    const ParameterTensor& tensor = layout.tensors[tensor_];
    const std::uint64_t left = (tensor.first + tensor.count).value() - position_;
    const auto part = elements.first(std::min<std::uint64_t>(elements.size(), left * width));
    append_to_tensor(part, source);
    elements = elements.subspan(part.size());
    position_ += part.size() / width;
    if (part.size() == left * width) next_tensor(tensor);
  }
  position_ += elements.size() / width;  // padding
}

void CheckpointWriter::append_to_tensor(std::span<const std::byte> elements, DType source) {
  if (writer_ == nullptr) {
    const Shard& shard = shards_[shard_];
    writer_ = std::make_unique<SafetensorsWriter>(staging_->path() / shard.name, shard.tensors,
                                                  options_.dtype);
  }
  if (source == options_.dtype) {
    writer_->append(elements);
    return;
  }
  std::array<std::byte, kWriteElements * 4> chunk;
  const std::size_t from = size_of(source);
  const std::size_t to = size_of(options_.dtype);
  while (!elements.empty()) {
    const std::size_t count = std::min(elements.size() / from, kWriteElements);
    bool fits = true;
    for (std::size_t i = 0; i < count; ++i) {
      fits &=
          store(load(elements.data() + i * from, source), options_.dtype, chunk.data() + i * to);
    }
    check(fits, ErrorCode::invalid_argument,
          fmt::format("tensor {} has a weight beyond the range of {}; export in bf16 or fp32",
                      layout_->blocks[block_.value()].tensors[tensor_].name,
                      name_of(options_.dtype)));
    writer_->append(std::span(chunk).first(count * to));
    elements = elements.subspan(count * from);
  }
}

void CheckpointWriter::next_tensor(const ParameterTensor& done) {
  ++tensor_;
  if (done.skipped + done.count < done.elements()) return;  // it goes on in the next block
  if (++tensor_in_shard_ < shards_[shard_].tensors.size()) return;
  writer_->finish();
  writer_.reset();
  tensor_in_shard_ = 0;
  ++shard_;
}

void CheckpointWriter::write_index() const {
  nlohmann::ordered_json index;
  std::uint64_t total = 0;
  std::map<std::string, std::string> places;
  for (const Shard& shard : shards_) {
    total += shard.size.value();
    for (const TensorToStore& tensor : shard.tensors) places.emplace(tensor.name, shard.name);
  }
  index["metadata"] = {{"total_size", total}};
  index["weight_map"] = nlohmann::json(places);
  staging_->write_text("model.safetensors.index.json", index.dump(2) + "\n");
}

void CheckpointWriter::add_file(std::string_view name, std::string_view content) {
  staging_->write_text(name, content);
}

void CheckpointWriter::finish() {
  check(shard_ == shards_.size(), ErrorCode::invalid_argument,
        fmt::format("the checkpoint is incomplete: block {} is at element {} of {}", block_.value(),
                    position_, layout_->blocks.at(block_.value()).parameters.value()));
  if (shards_.size() > 1) write_index();
  staging_->write_text("config.json", config_json_);
  staging_->publish();
}

}  // namespace spillway::model
