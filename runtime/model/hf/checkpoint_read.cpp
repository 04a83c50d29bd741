#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <system_error>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/json.hpp"
#include "runtime/model/hf/checkpoint.hpp"
#include "runtime/model/hf/checkpoint_files.hpp"

namespace spillway::model {
namespace {

constexpr std::string_view kHead = "lm_head.weight";

/// Returns what transformers puts before the names of the body of a causal model.
std::string_view prefix_of(const ModelConfig& config) {
  return config.is_gpt2() ? "transformer." : "model.";
}

/// Returns true for "<layers>.N.<name>" with N below `layers`.
bool is_layer_tensor(std::string_view text, std::string_view before, std::uint32_t layers,
                     std::string_view after) {
  if (!text.starts_with(before) || !text.ends_with(after)) return false;
  text.remove_prefix(before.size());
  std::uint32_t layer = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), layer);
  return status == std::errc{} && layer < layers &&
         std::string_view(end, static_cast<std::size_t>(text.data() + text.size() - end)) == after;
}

/// Recognizes constants that earlier versions of transformers stored beside the parameters.
bool is_known_buffer(std::string_view name, const ModelConfig& config) {
  const std::string_view prefix = prefix_of(config);
  if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  if (config.is_gpt2()) {
    return is_layer_tensor(name, "h.", config.layers, ".attn.bias") ||
           is_layer_tensor(name, "h.", config.layers, ".attn.masked_bias");
  }
  return name == "rotary_emb.inv_freq" ||
         is_layer_tensor(name, "layers.", config.layers, ".self_attn.rotary_emb.inv_freq");
}

}  // namespace

/// Assigns the tensors of the files to those of the layout.
class CheckpointReader::Matcher {
 public:
  Matcher(const ModelConfig& config, const ModelLayout& layout) : config_(config), layout_(layout) {
    for (std::size_t block = 0; block < layout.blocks.size(); ++block) {
      const auto& tensors = layout.blocks[block].tensors;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        places_[tensors[i].name].push_back({.block = block, .tensor = i});
      }
      sources_.emplace_back(tensors.size());
    }
  }

  void add(const SafetensorsFile& file) {
    for (const auto& [name, tensor] : file.header().tensors) {
      auto place = places_.find(name);
      if (place == places_.end()) place = places_.find(std::string(prefix_of(config_)) + name);
      if (place != places_.end()) {
        assign(name, place->second, {.file = &file, .tensor = &tensor});
      } else if (config_.tied_head && name == kHead) {
        check(tied_head_.file == nullptr, ErrorCode::corrupt_data,
              fmt::format("{}: tensor {} is stored twice", file.path(), brief_name(name)));
        tied_head_ = {.file = &file, .tensor = &tensor};
        check_tensor(name, layout_.blocks[layout_.blocks_of(0).first].tensors[0], tied_head_);
      } else if (!is_known_buffer(name, config_)) {
        throw Error(
            ErrorCode::invalid_argument,
            fmt::format("{}: tensor {} does not belong to this {} model of {} layers; is "
                        "config.json the one of these weights?",
                        file.path(), brief_name(name), name_of(config_.family), config_.layers));
      }
    }
  }

  std::vector<std::vector<Source>> finish(const std::filesystem::path& directory) {
    std::vector<std::string_view> missing;
    for (std::size_t block = 0; block < sources_.size(); ++block) {
      for (std::size_t i = 0; i < sources_[block].size(); ++i) {
        const ParameterTensor& tensor = layout_.blocks[block].tensors[i];
        const bool begins = tensor.skipped == ElementCount{};
        if (sources_[block][i].file == nullptr && begins) missing.push_back(tensor.name);
      }
    }
    const std::size_t named = std::min<std::size_t>(missing.size(), 3);
    check(missing.empty(), ErrorCode::invalid_argument,
          fmt::format("{}: {} of the model's tensors missing: {}{}", directory.string(),
                      missing.size(), fmt::join(std::span(missing).first(named), ", "),
                      missing.size() > named ? ", ..." : ""));
    return std::move(sources_);
  }

  [[nodiscard]] const Source& tied_head() const { return tied_head_; }

 private:
  struct TensorPlace {
    std::size_t block = 0;
    std::size_t tensor = 0;
  };

  void assign(const std::string& name, const std::vector<TensorPlace>& parts,
              const Source& source) {
    for (const TensorPlace& place : parts) {
      Source& slot = sources_[place.block][place.tensor];
      check(slot.file == nullptr, ErrorCode::corrupt_data,
            fmt::format("{}: tensor {} is stored twice, the other time in {}", source.file->path(),
                        brief_name(name), slot.file == nullptr ? "" : slot.file->path()));
      check_tensor(name, layout_.blocks[place.block].tensors[place.tensor], source);
      slot = source;
    }
  }

  static void check_tensor(const std::string& name, const ParameterTensor& wanted,
                           const Source& source) {
    check(source.tensor->shape == wanted.shape, ErrorCode::invalid_argument,
          fmt::format("{}: tensor {} has the shape [{}] and config.json makes it [{}]",
                      source.file->path(), brief_name(name), fmt::join(source.tensor->shape, ", "),
                      fmt::join(wanted.shape, ", ")));
    check(source.tensor->dtype().has_value(), ErrorCode::not_supported,
          fmt::format("{}: tensor {} is stored as {}; save it as F32, BF16 or F16",
                      source.file->path(), brief_name(name), source.tensor->type));
  }

  const ModelConfig& config_;
  const ModelLayout& layout_;
  /// All parts of each tensor, which may go on from block to block.
  std::map<std::string, std::vector<TensorPlace>, std::less<>> places_;
  std::vector<std::vector<Source>> sources_;
  Source tied_head_;
};

CheckpointReader::CheckpointReader(const std::filesystem::path& directory,
                                   const ModelConfig& config, const ModelLayout& layout)
    : layout_(&layout), files_(open_checkpoint_files(directory)) {
  Matcher matcher(config, layout);
  for (const auto& file : files_) matcher.add(*file);
  sources_ = matcher.finish(directory);
  if (matcher.tied_head().file != nullptr) check_tied_head(matcher.tied_head());
}

void CheckpointReader::check_tied_head(const Source& head) const {
  const Source& embedding = sources_[layout_->blocks_of(0).first][0];
  const std::uint64_t count = head.tensor->count().value();
  std::vector<float> ours(std::min<std::uint64_t>(count, std::uint64_t{1} << 16));
  std::vector<float> theirs(ours.size());
  for (std::uint64_t first = 0; first < count; first += ours.size()) {
    const std::size_t part = std::min<std::uint64_t>(ours.size(), count - first);
    const auto a = std::span(ours).first(part);
    const auto b = std::span(theirs).first(part);
    embedding.file->read(*embedding.tensor, ElementCount{first}, a);
    head.file->read(*head.tensor, ElementCount{first}, b);
    check(std::memcmp(a.data(), b.data(), a.size_bytes()) == 0, ErrorCode::invalid_argument,
          fmt::format("{}: tensor {} differs from the embedding, and config.json ties the two; set "
                      "\"tie_word_embeddings\" to false, or remove the tensor",
                      head.file->path(), kHead));
  }
}

namespace {

/// Weights that are not numbers train nothing and spoil everything that they meet.
void check_finite(std::span<const float> weights, ElementCount first, const std::string& path,
                  const std::string& tensor) {
  const auto bad =
      std::ranges::find_if(weights, [](float weight) { return !std::isfinite(weight); });
  if (bad == weights.end()) return;
  const auto element = first.value() + static_cast<std::uint64_t>(bad - weights.begin());
  throw Error(ErrorCode::corrupt_data,
              fmt::format("{}: tensor {} holds {} at element {}; weights must be finite: take a "
                          "checkpoint from before it diverged",
                          path, brief_name(tensor), *bad, element));
}

}  // namespace

void CheckpointReader::read(BlockIndex block, ElementCount first, std::span<float> target) const {
  const BlockLayout& layout = layout_->blocks.at(block.value());
  SPILLWAY_ASSERT(first + ElementCount{target.size()} <= layout.padded_parameters);
  // It begins with the tensor that holds `first`: the last one that does not begin behind it.
  auto tensor = std::ranges::upper_bound(layout.tensors, first, {}, &ParameterTensor::first);
  if (tensor != layout.tensors.begin()) --tensor;
  for (; !target.empty() && tensor != layout.tensors.end(); ++tensor) {
    const std::uint64_t skip = (first - tensor->first).value();
    if (skip >= tensor->count.value()) continue;
    const auto part =
        target.first(std::min<std::uint64_t>(target.size(), tensor->count.value() - skip));
    const Source& source =
        sources_[block.value()][static_cast<std::size_t>(tensor - layout.tensors.begin())];
    const ElementCount begin = tensor->skipped + ElementCount{skip};
    source.file->read(*source.tensor, begin, part);
    check_finite(part, begin, source.file->path(), tensor->name);
    target = target.subspan(part.size());
    first += ElementCount{part.size()};
  }
  std::ranges::fill(target, 0.0F);  // padding
}

DType CheckpointReader::dtype() const {
  const std::size_t embedding = layout_->operator_tile > 0 ? 1 : 0;
  return sources_[embedding][0].tensor->dtype().value_or(DType::fp32);
}

}  // namespace spillway::model
