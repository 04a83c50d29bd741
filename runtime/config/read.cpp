#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/config/detail/config_file.hpp"

namespace spillway::config {
namespace detail {
namespace {

using nlohmann::json;

bool is_auto_text(const json& value) {
  return value.is_string() && value.get_ref<const std::string&>() == "auto";
}

std::string default_in_words(const Option& option, const TrainOptions& options) {
  const json value = option.value(option, options);
  return value.is_array() ? value.dump() : shown(value);
}

/// "scheduler" of "scheduler.params".
std::string_view top_of(std::string_view section) { return section.substr(0, section.find('.')); }

void read_option(ConfigFile& file, const Option& option, TrainOptions& options) {
  if (option.applies != nullptr && !option.applies(options)) {
    if (!file.has(option.path())) return;
    const std::string chooser = fmt::format("{}.type", top_of(option.section));
    return file.note(option.path(), fmt::format("not needed: {} {} does not use it", chooser,
                                                shown(value_of(*find_option(chooser), options))));
  }
  const json* const whole = file.find(top_of(option.section));
  if (!option.missing.empty() && whole != nullptr && whole->is_object() &&
      !file.has(option.path())) {
    file.refuse(ErrorCode::invalid_argument, option.path(),
                fmt::format("is missing; {}", option.missing));
  }
  option.read(file, option, options);
}

}  // namespace

const json* ConfigFile::find(std::string_view path) const {
  const json* place = &root_;
  while (!path.empty()) {
    const std::string_view key = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(path.size(), key.size() + 1));
    if (!place->is_object()) return nullptr;
    const auto found = place->find(key);
    if (found == place->end() || found->is_null()) return nullptr;
    place = &*found;
  }
  return place;
}

bool ConfigFile::is_auto(const Option& option) const {
  const json* const value = find(option.path());
  return value != nullptr && is_auto_text(*value);
}

const json* ConfigFile::value(const Option& option, const TrainOptions& options) {
  const json* const value = find(option.path());
  if (value == nullptr) return nullptr;
  if (is_auto_text(*value) && std::ranges::count(option.domain.names, "auto") == 0) {
    if (option.automatic.empty()) {
      refuse(ErrorCode::invalid_argument, option.path(),
             "is \"auto\", and there is nothing that Spillway could take it from; write a value");
    }
    const bool standard = option.automatic == automatic::kDefault;
    if (option.automatic != automatic::kChosenLater) {
      note(option.path(), fmt::format("\"auto\" is {}", standard ? default_in_words(option, options)
                                                                 : std::string(option.automatic)));
    }
    return nullptr;
  }
  if (!option.automatic.empty() && value->is_array() && std::ranges::any_of(*value, is_auto_text)) {
    refuse(ErrorCode::invalid_argument, option.path(),
           "holds \"auto\"; write \"auto\" in place of the whole array, or a value for each");
  }
  const std::string fault = option.domain.fault_of(*value);
  if (!fault.empty()) {
    refuse(ErrorCode::invalid_argument, option.path(),
           fmt::format("{}; write {}", fault, option.domain.in_words()));
  }
  return value->is_array() && option.domain.kind == Kind::rate ? &value->front() : value;
}

namespace {

/// DeepSpeed's identity: train_batch_size = micro-batch x accumulation x ranks, of a pipeline the
/// ranks of a stage. Any two of the
/// three give the third; what cannot be derived is 1 or, where the file says "auto", is chosen
/// later.
void settle_batch(ConfigFile& file, std::uint32_t ranks, TrainOptions& options) {
  constexpr std::string_view kTrain = "train_batch_size";
  constexpr std::string_view kMicro = "train_micro_batch_size_per_gpu";
  constexpr std::string_view kAccumulation = "gradient_accumulation_steps";
  const auto number_at = [&](std::string_view path) {
    const json* const value = file.find(path);
    const bool fits = value != nullptr && find_option(path)->domain.fault_of(*value).empty();
    return fits ? std::optional(value->get<std::uint32_t>()) : std::nullopt;
  };
  const auto refuse = [&](std::string_view what) {
    file.refuse(ErrorCode::invalid_argument, std::string(kTrain), what);
  };
  const auto train = number_at(kTrain);
  const auto micro = number_at(kMicro);
  const auto accumulation = number_at(kAccumulation);
  AutomaticOptions& automatic = options.automatic;
  automatic.micro_batch =
      file.has(kMicro) && !micro && !(train && (accumulation || !file.has(kMicro)));
  automatic.accumulation =
      !accumulation && (automatic.micro_batch || (file.has(kAccumulation) && !train));
  if (!train) {
    if (options.tokens_per_step > 0 && !file.has(kTrain)) {
      automatic.micro_batch |= !file.has(kMicro);
      automatic.accumulation |= !file.has(kAccumulation);
    }
    return;
  }
  if (*train % ranks != 0) refuse(fmt::format("{} is not a multiple of {} ranks", *train, ranks));
  const std::uint32_t of_rank = *train / ranks;
  if (automatic.micro_batch) {
    automatic.windows = of_rank;
    return;
  }
  // Derives one of the two from the other, which is given under `key`.
  const auto derive = [&](std::uint32_t& target, std::uint32_t other, std::string_view key) {
    if (of_rank % other != 0) {
      refuse(
          fmt::format("{} over {} rank(s) is not a multiple of {} {}", *train, ranks, key, other));
    }
    target = of_rank / other;
  };
  if (!micro) derive(options.micro_batch, options.gradient_accumulation_steps, kAccumulation);
  if (micro && !accumulation) {
    derive(options.gradient_accumulation_steps, options.micro_batch, kMicro);
  }
  for (const std::string_view key : {kMicro, kAccumulation}) {
    if (file.is_auto(*find_option(key)))
      file.note(std::string(key), "\"auto\" is what train_batch_size leaves");
  }
  if (windows_of_step(options) != of_rank) {
    refuse(fmt::format("{} is not {} {} x {} {} x {} rank(s); remove it, or change {}", *train,
                       kMicro, options.micro_batch, kAccumulation,
                       options.gradient_accumulation_steps, ranks, kAccumulation));
  }
}

/// Whoever leaves the micro-batches of a step to the planner leaves it the rounds too.
void settle_rounds(const ConfigFile& file, AutomaticOptions& automatic) {
  const Option& rounds = *find_option("spillway.rounds");
  automatic.rounds = file.has(rounds.path()) ? file.is_auto(rounds)
                                             : automatic.micro_batch && automatic.accumulation;
}

}  // namespace
}  // namespace detail

ParsedConfig parse_train_config(std::string_view text, std::string_view origin,
                                std::uint32_t ranks) {
  SPILLWAY_ASSERT(ranks > 0);
  ParsedConfig parsed;
  detail::ConfigFile file(detail::parse_commented_json(text, origin), origin, parsed.notes);
  for (const Option& option : options_table()) {
    file.attempt([&] { detail::read_option(file, option, parsed.options); });
  }
  // The stages of a pipeline share their micro-batches, and so do the ranks of a tensor group.
  const std::uint64_t sharing =
      std::uint64_t{parsed.options.pipeline.stages} * parsed.options.tensor.ranks;
  const auto replicas = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, ranks / sharing));
  parsed.options.automatic.ranks = replicas;
  file.attempt([&] { detail::settle_batch(file, replicas, parsed.options); });
  detail::settle_rounds(file, parsed.options.automatic);
  file.finish(parsed.options);
  return parsed;
}

}  // namespace spillway::config
