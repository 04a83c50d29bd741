#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "runtime/config/detail/config_file.hpp"
#include "runtime/config/keys.hpp"

namespace spillway::config::detail {
namespace {

constexpr std::size_t kShownCharacters = 64;

/// What people write who know a key by another name.
struct Alias {
  std::string_view written;
  std::string_view key;
};

constexpr std::array kAliases = std::to_array<Alias>({
    {"learning_rate", "optimizer.params.lr"},
    {"lr", "optimizer.params.lr"},
    {"wd", "optimizer.params.weight_decay"},
    {"beta1", "optimizer.params.betas"},
    {"beta2", "optimizer.params.betas"},
    {"adam_beta1", "optimizer.params.betas"},
    {"adam_beta2", "optimizer.params.betas"},
    {"epsilon", "optimizer.params.eps"},
    {"adam_epsilon", "optimizer.params.eps"},
    {"warmup_steps", "scheduler.params.warmup_num_steps"},
    {"warmup", "scheduler.params.warmup_num_steps"},
    {"lr_scheduler_type", "scheduler.type"},
    {"lr_scheduler", "scheduler"},
    {"max_grad_norm", "gradient_clipping"},
    {"grad_clip", "gradient_clipping"},
    {"batch_size", "train_micro_batch_size_per_gpu"},
    {"micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"global_batch_size", "train_batch_size"},
    {"max_steps", "spillway.steps"},
    {"num_steps", "spillway.steps"},
    {"max_length", "spillway.context"},
    {"sequence_length", "spillway.context"},
    {"seq_len", "spillway.context"},
    {"dtype", "spillway.compute"},
    {"precision", "spillway.compute"},
    {"save_steps", "spillway.save_every"},
    {"eval_steps", "spillway.eval_every"},
    {"save_total_limit", "spillway.keep"},
    {"gradient_checkpointing", "spillway.checkpointing"},
});

/// A key that a section may have.
struct Known {
  std::string section;
  std::string key;
};

Known split_path(const std::string& path) {
  const std::size_t last = path.rfind('.');
  if (last == std::string::npos) return {{}, path};
  return {path.substr(0, last), path.substr(last + 1)};
}

/// Every key: of options where they apply, of DeepSpeed where Spillway has no use for it, and the
/// names of sections.
std::vector<Known> known_keys(const TrainOptions& options) {
  std::vector<Known> known;
  for (const Option& option : options_table()) {
    if (option.applies != nullptr && !option.applies(options)) continue;
    known.emplace_back(std::string(option.section), std::string(option.key));
    known.push_back(split_path(std::string(option.section)));
  }
  for (const ForeignKey& key : foreign_keys()) {
    known.emplace_back(std::string(key.section), std::string(key.key));
    const std::string path = join_path(key.section, key.key);
    for (const std::string_view each : inner_keys(key)) {
      if (!each.ends_with('*')) known.push_back(split_path(join_path(path, each)));
    }
  }
  return known;
}

/// True where `key` is `known` with at most a third of its letters wrong, or its first half.
bool is_near(std::string_view key, std::string_view known) {
  if (key.size() >= 4 && known.starts_with(key)) return true;
  return edit_distance(key, known) <= std::max<std::size_t>(1, known.size() / 3);
}

/// The key that was meant: a near one of the same section, another name of one, or the same name in
/// another section. Nothing is better than a guess.
std::string hint(const std::vector<Known>& known, const std::string& section,
                 const std::string& key) {
  const auto is = [](std::string_view path) {
    return fmt::format("; the nearest known key is {}", path);
  };
  const Known* nearest = nullptr;
  std::size_t least = 0;
  for (const Known& each : known) {
    if (each.section != section || !is_near(key, each.key)) continue;
    // Half a key, "train_micro_batch_size", is nearer to the whole than to another of its length.
    const std::size_t edits = each.key.starts_with(key) ? 1 : edit_distance(key, each.key);
    if (nearest == nullptr || edits < least) {
      nearest = &each;
      least = edits;
    }
  }
  if (nearest != nullptr) return is(join_path(section, nearest->key));
  for (const Alias& alias : kAliases) {
    if (alias.written == key) return is(alias.key);
  }
  for (const Known& each : known) {
    if (each.key == key) return is(join_path(each.section, each.key));
  }
  for (const Option& option : options_table()) {
    if (option.key == key) return is(option.path());
  }
  return {};
}

}  // namespace

void ConfigFile::refuse(ErrorCode code, const std::string& path, std::string_view what) const {
  throw Error(code, fmt::format("{}: {} {}", origin_, path, what));
}

void ConfigFile::refuse_value(const Option& option, std::string_view allowed) const {
  refuse(ErrorCode::invalid_argument, option.path(),
         fmt::format("is {}; write {}", shown(*find(option.path())), allowed));
}

void ConfigFile::note(const std::string& path, std::string_view what) {
  notes_.push_back(fmt::format("{}: {}", path, what));
}

void ConfigFile::finish(const TrainOptions& options) {
  answer_keys(root_, "");
  const std::vector<Known> known = known_keys(options);
  for (const auto& [section, key] : unknown_) {
    const std::string shown_key = key.substr(0, kShownCharacters);
    errors_.emplace_back(ErrorCode::invalid_argument,
                         fmt::format("{}: unknown key {}{}", origin_, join_path(section, shown_key),
                                     hint(known, section, shown_key)));
  }
  if (errors_.empty()) return;
  if (errors_.size() == 1) throw errors_.front();
  const bool unsupported = std::ranges::all_of(
      errors_, [](const Error& error) { return error.code() == ErrorCode::not_supported; });
  std::string text = fmt::format("{}: {} errors", origin_, errors_.size());
  const std::string prefix = origin_ + ": ";
  for (const Error& error : errors_) {
    std::string_view what = error.what();
    if (what.starts_with(prefix)) what.remove_prefix(prefix.size());
    text += fmt::format("\n  {}", what);
  }
  throw Error(unsupported ? ErrorCode::not_supported : ErrorCode::invalid_argument, text);
}

}  // namespace spillway::config::detail
