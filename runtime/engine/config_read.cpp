#include "runtime/engine/detail/config_read.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "runtime/engine/options_table.hpp"

namespace spillway::engine {
namespace detail {
namespace {

/// DeepSpeed's identity: train_batch_size = micro-batch x accumulation x ranks. Any two of the
/// three give the third; what cannot be derived is 1 or, where the file says "auto", is chosen
/// later.
void read_batch(Section& root, std::uint32_t ranks, TrainOptions& options) {
  constexpr std::string_view kTrain = "train_batch_size";
  constexpr std::string_view kMicro = "train_micro_batch_size_per_gpu";
  constexpr std::string_view kAccumulation = "gradient_accumulation_steps";
  constexpr AutoMeans kLeft{"what train_batch_size leaves"};
  constexpr AutoMeans kChosen{"the largest that fits", AutoNote::later};
  const auto train = root.integer32(kTrain, 1, {"micro-batch x accumulation x ranks"});
  const auto accumulation = root.integer32(kAccumulation, 1, train ? kLeft : kChosen);
  const bool derived = train && (accumulation || !root.has(kMicro));
  const auto micro = root.integer32(kMicro, 1, derived ? kLeft : kChosen);
  options.micro_batch = micro.value_or(1);
  options.gradient_accumulation_steps = accumulation.value_or(1);
  options.automatic.micro_batch = root.has(kMicro) && !micro && !derived;
  options.automatic.accumulation =
      !accumulation && (options.automatic.micro_batch || (root.has(kAccumulation) && !train));
  if (options.automatic.micro_batch && train && *train % ranks == 0) {
    options.automatic.windows = *train / ranks;
    return;
  }
  if (!train) return;
  const auto refuse = [&](std::string_view what) {
    root.refuse(ErrorCode::invalid_argument, kTrain, what);
  };
  if (*train % ranks != 0) refuse(fmt::format("{} is not a multiple of {} ranks", *train, ranks));
  const std::uint32_t of_rank = *train / ranks;
  if (!micro && !accumulation) {
    options.micro_batch = of_rank;
  } else if (!micro) {
    if (of_rank % *accumulation != 0) {
      refuse(fmt::format("{} over {} rank(s) is not a multiple of {} {}", *train, ranks,
                         kAccumulation, *accumulation));
    }
    options.micro_batch = of_rank / *accumulation;
  } else if (!accumulation) {
    if (of_rank % *micro != 0) {
      refuse(fmt::format("{} over {} rank(s) is not a multiple of {} {}", *train, ranks, kMicro,
                         *micro));
    }
    options.gradient_accumulation_steps = of_rank / *micro;
  }
  const std::uint64_t product =
      std::uint64_t{options.micro_batch} * options.gradient_accumulation_steps;
  if (product != of_rank) {
    refuse(fmt::format("{} is not {} {} x {} {} x {} rank(s); remove it, or change {}", *train,
                       kMicro, options.micro_batch, kAccumulation,
                       options.gradient_accumulation_steps, ranks, kAccumulation));
  }
}

void read_loss_scale(Section& fp16, LossScaleOptions& options) {
  const double scale = fp16.non_negative("loss_scale", {"0 (dynamic)"}).value_or(0);
  const auto power = fp16.integer("initial_scale_power", 0, 100, {"16"});
  assign(options.window, fp16.integer32("loss_scale_window", 1, {"1000"}));
  assign(options.hysteresis, fp16.integer32("hysteresis", 1, {"2"}));
  assign(options.consecutive_hysteresis, fp16.flag("consecutive_hysteresis", {"false"}));
  assign(options.minimum, fp16.non_negative("min_loss_scale", {"1"}));
  options.dynamic = scale == 0;
  if (!options.dynamic) {
    options.initial = scale;
  } else if (power) {
    options.initial = std::ldexp(1.0, static_cast<int>(*power));
  }
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

struct OptimizerType {
  std::string_view name;
  cpu_adam::Optimizer optimizer;
  /// As torch has them: decay goes through the gradient, but for Lion.
  cpu_adam::DecayMode decay_mode;
};

constexpr std::array kOptimizerTypes{
    OptimizerType{"AdamW", cpu_adam::Optimizer::adam, cpu_adam::DecayMode::decoupled},
    OptimizerType{"Adam", cpu_adam::Optimizer::adam, cpu_adam::DecayMode::decoupled},
    OptimizerType{"Adagrad", cpu_adam::Optimizer::adagrad, cpu_adam::DecayMode::l2},
    OptimizerType{"Lion", cpu_adam::Optimizer::lion, cpu_adam::DecayMode::decoupled},
    OptimizerType{"SGD", cpu_adam::Optimizer::sgd, cpu_adam::DecayMode::l2},
};

/// "Adam" means AdamW unless adam_w_mode is false; "AdamW" always does.
void read_optimizer_type(Section& optimizer, Section& params, cpu_adam::AdamOptions& adam) {
  const std::string type = optimizer.text("type").value_or("AdamW");
  const auto* found = std::ranges::find_if(kOptimizerTypes, [&](const OptimizerType& known) {
    return equals_ignoring_case(type, known.name);
  });
  if (found == kOptimizerTypes.end()) {
    optimizer.refuse(ErrorCode::not_supported, "type",
                     fmt::format("is \"{}\"; Spillway has Adam, AdamW, Adagrad, Lion and SGD",
                                 type.substr(0, 64)));
  }
  adam.optimizer = found->optimizer;
  adam.decay_mode = found->decay_mode;
  if (adam.optimizer != cpu_adam::Optimizer::adam) return;
  if (params.flag("adam_w_mode", {"true"}) != false) return;
  if (found->name == "Adam") {
    adam.decay_mode = cpu_adam::DecayMode::l2;
  } else {
    params.note("adam_w_mode",
                "ignored: optimizer.type AdamW decouples the decay, as in DeepSpeed");
  }
}

/// What differs from Adam in the names and defaults of the others' parameters, as DeepSpeed has
/// them, and torch those of SGD.
void read_optimizer_params(Section& params, cpu_adam::AdamOptions& adam) {
  using cpu_adam::Optimizer;
  if (adam.optimizer == Optimizer::sgd) {
    adam.beta1 = 0;
    assign(adam.beta1, params.non_negative("momentum", {"0"}));
    if (params.flag("nesterov") == true) {
      params.refuse(ErrorCode::not_supported, "nesterov", "is true; momentum is Polyak's");
    }
    return;
  }
  if (adam.optimizer == Optimizer::adagrad) {
    adam.lr = 1e-2;
    adam.eps = 1e-10;
    assign(adam.eps, params.non_negative("eps", {"1e-10"}));
    return;
  }
  if (const auto betas = params.pair("betas", {"[0.9, 0.999]"})) {
    std::tie(adam.beta1, adam.beta2) = *betas;
  }
  if (adam.optimizer == Optimizer::lion) return;
  assign(adam.eps, params.non_negative("eps", {"1e-08"}));
  assign(adam.bias_correction, params.flag("bias_correction", {"true"}));
}

}  // namespace

void read_precision(Section& root, Section& spillway, TrainOptions& options) {
  constexpr AutoMeans kChosen{"the type of the model", AutoNote::later};
  Section fp16 = root.section("fp16");
  const std::optional<bool> fp16_says = fp16.flag("enabled", kChosen);
  const bool fp16_on = fp16_says.value_or(false);
  read_loss_scale(fp16, options.loss_scale);
  const bool old_name = root.has("bfloat16");
  Section bf16 = root.section(old_name ? "bfloat16" : "bf16");
  if (old_name && root.has("bf16")) {
    root.refuse(ErrorCode::invalid_argument, "bfloat16", "is the old name of bf16; remove one");
  }
  const std::optional<bool> bf16_says = bf16.flag("enabled", kChosen);
  const bool bf16_on = bf16_says.value_or(false);
  if (fp16_on && bf16_on) {
    root.refuse(ErrorCode::invalid_argument, "fp16.enabled",
                "and bf16.enabled are both true; enable one of them");
  }
  const auto compute = spillway.choice<DType>("compute");
  if (fp16_on || bf16_on) {
    options.compute = fp16_on ? DType::fp16 : DType::bf16;
    if (compute && *compute != options.compute) {
      spillway.refuse_value("compute",
                            fmt::format("nothing: {} is enabled", config_name(options.compute)));
    }
  } else {
    assign(options.compute, std::optional(compute));
    options.automatic.fp16 = fp16.has("enabled") && !fp16_says;
    const bool bf16_is_auto = bf16.has("enabled") && !bf16_says;
    options.automatic.compute = !compute && (options.automatic.fp16 || bf16_is_auto);
    options.automatic.state_format = options.automatic.compute && !spillway.has("state_format");
    options.automatic.fp16 = options.automatic.fp16 && options.automatic.compute;
  }
  if (!options.automatic.compute) {
    const std::string is_false =
        fmt::format("\"auto\" is false: the type is {}", config_name(options.compute));
    if (fp16.has("enabled") && !fp16_says) fp16.note("enabled", is_false);
    if (bf16.has("enabled") && !bf16_says) bf16.note("enabled", is_false);
  }
  // The same bits as fp32, in two bytes less; an explicit spillway.state_format replaces it.
  if (options.compute == DType::bf16) options.state_format = StateFormat::split;
}

void read_optimizer(Section& root, TrainOptions& options) {
  cpu_adam::AdamOptions& adam = options.adam;
  Section optimizer = root.section("optimizer");
  Section params = optimizer.section("params");
  read_optimizer_type(optimizer, params, adam);
  read_optimizer_params(params, adam);
  const auto lr = params.non_negative("lr", {"5e-05, HF Trainer's"});
  if (params.has("lr")) adam.lr = lr.value_or(5e-5);
  assign(adam.weight_decay, params.non_negative("weight_decay", {"0"}));
  if (params.has("max_grad_norm")) {
    params.refuse(ErrorCode::invalid_argument, "max_grad_norm",
                  "is not a parameter of the optimizer; write gradient_clipping at the top level");
  }
  if (params.has("adamw_mode")) {
    params.refuse(
        ErrorCode::invalid_argument, "adamw_mode",
        "is the optimizer's own word; write adam_w_mode, as DeepSpeed's configurations do");
  }
  if (params.flag("fp32_optimizer_states") == false) {
    params.refuse(ErrorCode::not_supported, "fp32_optimizer_states",
                  "is false; the state's format is spillway.state_format");
  }
  options.schedule.optimizer_lr = options.schedule.peak_lr = adam.lr;
}

void read_zero(Section& root, TrainOptions& options) {
  Section zero = root.section("zero_optimization");
  options.zero_stage = static_cast<std::uint32_t>(zero.integer("stage", 0, 3).value_or(0));

  if (zero.flag("cpu_offload") == true) {
    zero.note("cpu_offload", "old name of offload_optimizer.device cpu");
    options.state_home = StateHome::host;
  }
  Section optimizer = zero.section("offload_optimizer");
  const auto nvme_path = optimizer.text("nvme_path");
  if (optimizer.has("device")) {
    const std::string device = *optimizer.text("device");
    if (device == "none") {
      options.state_home = StateHome::device;
    } else if (device == "cpu") {
      options.state_home = StateHome::host;
    } else if (device == "nvme") {
      options.state_home = StateHome::nvme;
    } else {
      optimizer.refuse_value("device", "one of none, cpu, nvme");
    }
  }
  if (nvme_path && options.state_home == StateHome::nvme) {
    options.nvme = {*nvme_path};
  } else if (nvme_path) {
    optimizer.note("nvme_path", "ignored: offload_optimizer.device is not nvme");
  }

  Section param = zero.section("offload_param");
  const auto device = param.text("device");
  if (device && *device != "none" && *device != "cpu" && *device != "nvme") {
    param.refuse_value("device", "one of none, cpu, nvme");
  }
  const bool param_path = param.text("nvme_path").has_value();
  const bool old_param = zero.flag("cpu_offload_param") == true;
  if (options.zero_stage < 3) {
    if (param.present()) zero.note("offload_param", "ignored below stage 3, as in DeepSpeed");
    if (old_param) zero.note("cpu_offload_param", "ignored below stage 3, as in DeepSpeed");
    return;
  }
  if (old_param || device == "cpu" || device == "nvme") options.residency = Residency::none;
  if (device == "nvme" || param_path) {
    param.note(param_path ? "nvme_path" : "device",
               "16-bit parameters stream from host memory; what moves to disk is optimizer state");
  }
}

void read_monitors(Section& root, TrainOptions& options) {
  for (auto [key, monitor] : {std::pair("tensorboard", &options.tensorboard),
                              std::pair("csv_monitor", &options.csv_monitor)}) {
    Section section = root.section(key);
    assign(monitor->enabled, section.flag("enabled"));
    assign(monitor->output_path, section.text("output_path"));
    assign(monitor->job_name, section.text("job_name"));
    const std::filesystem::path name = monitor->job_name;
    if (name.empty() || name != name.filename() || name == "." || name == "..") {
      section.refuse_value("job_name", "the name of one folder");
    }
  }
  constexpr std::array<std::string_view, 11> kOfServices{
      "group",     "team",    "project",         "samples_log_interval",
      "workspace", "api_key", "experiment_name", "experiment_key",
      "online",    "mode",    "entity"};
  for (const std::string_view key : {"wandb", "comet"}) {
    Section section = root.section(key);
    for (const std::string_view each : kOfServices) static_cast<void>(section.has(each));
    if (section.flag("enabled") == true) {
      section.note("enabled",
                   "Spillway sends nothing over a network; enable tensorboard, and "
                   "upload its files (`wandb sync DIR` takes them)");
    }
  }
}

void read_spillway(ConfigContext& context, Section& spillway, TrainOptions& options) {
  for (const Option& option : options_table()) {
    if (option.read == nullptr) continue;
    context.attempt("", [&] { option.read(spillway, option, options); });
  }
}

}  // namespace detail

ParsedConfig parse_train_config(std::string_view text, std::string_view origin,
                                std::uint32_t ranks) {
  SPILLWAY_ASSERT(ranks > 0);
  const nlohmann::json file = detail::parse_commented_json(text, origin);
  ParsedConfig parsed;
  TrainOptions& options = parsed.options;
  detail::ConfigContext context(origin, parsed.notes);
  detail::Section root(context, &file, "");
  const auto read = [&](std::string_view path, const auto& part) { context.attempt(path, part); };
  read("", [&] { detail::read_batch(root, ranks, options); });
  read("", [&] {
    if (const auto clip = root.non_negative("gradient_clipping", {"1"})) {
      options.gradient_clipping = *clip;
    }
  });
  std::optional<detail::Section> spillway;
  read("spillway", [&] { spillway.emplace(root.section("spillway")); });
  if (spillway) read("fp16", [&] { detail::read_precision(root, *spillway, options); });
  read("optimizer", [&] { detail::read_optimizer(root, options); });
  read("scheduler", [&] { detail::read_scheduler(root, options); });
  read("zero_optimization", [&] { detail::read_zero(root, options); });
  read("activation_checkpointing", [&] {
    detail::Section activations = root.section("activation_checkpointing");
    if (activations.flag("cpu_checkpointing") == true) options.activations = StateHome::host;
  });
  read("tensorboard", [&] { detail::read_monitors(root, options); });
  if (spillway) detail::read_spillway(context, *spillway, options);
  if (options.tokens_per_step > 0 && !root.has("train_batch_size")) {
    options.automatic.micro_batch |= !root.has("train_micro_batch_size_per_gpu");
    options.automatic.accumulation |= !root.has("gradient_accumulation_steps");
  }
  context.finish();
  return parsed;
}

}  // namespace spillway::engine
