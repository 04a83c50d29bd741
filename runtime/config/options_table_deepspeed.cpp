#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <optional>

#include "runtime/config/detail/option_builders.hpp"
#include "runtime/config/detail/schedule_deepspeed.hpp"

namespace spillway::config::detail {
namespace {

using nlohmann::json;

bool fp16(const TrainOptions& options) { return options.compute == DType::fp16; }
bool dynamic_scale(const TrainOptions& options) {
  return fp16(options) && options.loss_scale.dynamic;
}

void read_clipping(ConfigFile& file, const Option& self, TrainOptions& options) {
  read_member<&TrainOptions::gradient_clipping>(file, self, options);
  if (file.has(self.path())) return;
  file.note(self.path(), fmt::format("absent: {}, as HF Trainer's max_grad_norm; DeepSpeed's own "
                                     "default is 0, which never clips",
                                     options.gradient_clipping));
}

/// fp16.enabled, bf16.enabled and its old name; read_compute settles what they say together.
template <DType Type>
void read_enabled(ConfigFile& file, const Option& self, TrainOptions& options) {
  const json* const enabled = file.value(self, options);
  if (self.section == "bfloat16" && file.has("bfloat16") && file.has("bf16")) {
    file.refuse(ErrorCode::invalid_argument, "bfloat16", "is the old name of bf16; remove one");
  }
  if (file.is_auto(self)) {
    options.automatic.compute = true;
    options.automatic.fp16 |= Type == DType::fp16;
  }
  if (enabled == nullptr || *enabled == false) return;
  if (Type == DType::bf16 && options.compute == DType::fp16) {
    file.refuse(ErrorCode::invalid_argument, "fp16.enabled",
                "and bf16.enabled are both true; enable one of them");
  }
  options.compute = Type;
}

template <DType Type>
json value_of_enabled(const Option&, const TrainOptions& options) {
  return options.compute == Type;
}

void add_loss_scale(std::vector<Option>& table) {
  using Scale = LossScaleOptions;
  Rows rows(table, {.section = "fp16", .counts = fp16, .automatic = automatic::kDefault});
  rows.own(
      {"loss_scale",
       "The loss is multiplied by this constant number; with 0 the loss scale is dynamic.", "0"},
      kNumber,
      [](ConfigFile& file, const Option& self, TrainOptions& options) {
        const json* const scale = file.value(self, options);
        options.loss_scale.dynamic = scale == nullptr || *scale == 0;
        if (!options.loss_scale.dynamic) options.loss_scale.initial = scale->get<double>();
      },
      [](const Option&, const TrainOptions& options) {
        return json(options.loss_scale.dynamic ? 0 : options.loss_scale.initial);
      });
  Rows dynamic(table,
               {.section = "fp16", .counts = dynamic_scale, .automatic = automatic::kDefault});
  dynamic.own(
      {"initial_scale_power", "The dynamic loss scale starts at 2 to this power.", "16"},
      whole<std::uint32_t>(0, 100),
      [](ConfigFile& file, const Option& self, TrainOptions& options) {
        const json* const power = file.value(self, options);
        if (power == nullptr || !options.loss_scale.dynamic) return;
        options.loss_scale.initial = std::ldexp(1.0, power->get<int>());
      },
      [](const Option&, const TrainOptions& options) {
        return options.loss_scale.dynamic ? json(std::ilogb(options.loss_scale.initial)) : json();
      });
  dynamic.member<&TrainOptions::loss_scale, &Scale::window>(
      {"loss_scale_window",
       "The loss scale doubles at the step that follows this many steps without an overflow."},
      whole<std::uint32_t>(1));
  dynamic.member<&TrainOptions::loss_scale, &Scale::hysteresis>(
      {"hysteresis", "The loss scale is halved when this many steps have overflowed."},
      whole<std::uint32_t>(1));
  dynamic.member<&TrainOptions::loss_scale, &Scale::consecutive_hysteresis>(
      {"consecutive_hysteresis",
       "Every step without an overflow starts the count of `hysteresis` anew."});
  dynamic.member<&TrainOptions::loss_scale, &Scale::minimum>(
      {"min_loss_scale",
       "The dynamic loss scale never falls below this number; an overflow there ends the run."},
      kPositive);
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

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

const OptimizerType* find_optimizer(std::string_view type) {
  const auto* const found = std::ranges::find_if(kOptimizerTypes, [&](const OptimizerType& known) {
    return equals_ignoring_case(type, known.name);
  });
  return found == kOptimizerTypes.end() ? nullptr : found;
}

/// HF Trainer's learning rate.
constexpr double kTrainerRate = 5e-5;

/// What the chosen optimizer has for what the file leaves out is DeepSpeed's, and torch's for SGD.
/// A file without the section leaves it to HF Trainer, which brings an optimizer of its own.
void read_optimizer_type(ConfigFile& file, const Option& self, TrainOptions& options) {
  if (!file.has("optimizer")) {
    options.adam.lr = kTrainerRate;
    file.note("optimizer", fmt::format("absent: AdamW with lr {}, as HF Trainer's", kTrainerRate));
  }
  const json* const type = file.find(self.path());
  if (type == nullptr) return;
  if (!type->is_string()) file.refuse_value(self, "a text, \"...\"");
  const OptimizerType* const found = find_optimizer(type->get<std::string_view>());
  if (found == nullptr) {
    file.refuse(
        ErrorCode::not_supported, self.path(),
        fmt::format("is {}; Spillway has Adam, AdamW, Adagrad, Lion and SGD", shown(*type)));
  }
  options.adam.optimizer = found->optimizer;
  options.adam.decay_mode = found->decay_mode;
  if (found->optimizer == cpu_adam::Optimizer::sgd) options.adam.beta1 = 0;
  if (found->optimizer == cpu_adam::Optimizer::adagrad) {
    options.adam.lr = 1e-2;
    options.adam.eps = 1e-10;
  }
}

bool has_l2_adam(const TrainOptions& options) {
  return options.adam.optimizer == cpu_adam::Optimizer::adam &&
         options.adam.decay_mode == cpu_adam::DecayMode::l2;
}

json value_of_optimizer_type(const Option&, const TrainOptions& options) {
  if (has_l2_adam(options)) return "Adam";
  return std::ranges::find(kOptimizerTypes, options.adam.optimizer, &OptimizerType::optimizer)
      ->name;
}

/// "Adam" means AdamW unless adam_w_mode is false; "AdamW" always does.
void read_adam_w_mode(ConfigFile& file, const Option& self, TrainOptions& options) {
  const json* const mode = file.value(self, options);
  if (mode == nullptr || *mode == true) return;
  const json* const type = file.find("optimizer.type");
  const bool named = type != nullptr && type->is_string();
  if (named && equals_ignoring_case(type->get<std::string_view>(), "Adam")) {
    options.adam.decay_mode = cpu_adam::DecayMode::l2;
  } else {
    file.note(self.path(), "ignored: optimizer.type AdamW decouples the decay, as in DeepSpeed");
  }
}

void read_lr(ConfigFile& file, const Option& self, TrainOptions& options) {
  if (const json* const lr = file.value(self, options)) options.adam.lr = lr->get<double>();
  if (file.is_auto(self)) options.adam.lr = kTrainerRate;
  options.schedule.optimizer_lr = options.schedule.peak_lr = options.adam.lr;
}

template <cpu_adam::Optimizer... Used>
bool uses(const TrainOptions& options) {
  return ((options.adam.optimizer == Used) || ...);
}

}  // namespace

void add_batch_and_precision(std::vector<Option>& table) {
  Rows top(table, {.section = "", .automatic = automatic::kChosenLater});
  top.own({"train_batch_size",
           "A step trains on this many windows. It gives whichever of the next two keys is absent.",
           "micro-batch x accumulation x ranks"},
          whole<std::uint32_t>(1), only_check)
      .automatic = "micro-batch x accumulation x ranks";
  top.member<&TrainOptions::micro_batch>(
      {"train_micro_batch_size_per_gpu",
       "A micro-batch has this many windows; they run through the model together."},
      whole<std::uint32_t>(1));
  top.member<&TrainOptions::gradient_accumulation_steps>(
      {"gradient_accumulation_steps", "A step adds up the gradients of this many micro-batches."},
      whole<std::uint32_t>(1));
  Rows(table, {.section = "", .automatic = automatic::kDefault})
      .member<&TrainOptions::gradient_clipping>(
          {"gradient_clipping",
           "Gradients whose global norm is larger are scaled down to it; 0 never clips."})
      .read = read_clipping;
  const auto add_enabled = [&](std::string_view section, std::string_view meaning, auto read,
                               auto value) {
    Rows(table, {.section = section, .automatic = automatic::kChosenLater})
        .own({"enabled", meaning, "false"}, kFlag, read, value);
  };
  add_enabled("fp16", "Parameters and activations are in fp16.", read_enabled<DType::fp16>,
              value_of_enabled<DType::fp16>);
  add_loss_scale(table);
  add_enabled("bf16", "Parameters and activations are in bf16.", read_enabled<DType::bf16>,
              value_of_enabled<DType::bf16>);
  add_enabled("bfloat16", "This is the old name of `bf16.enabled`.", read_enabled<DType::bf16>,
              nullptr);
}

void add_optimizer(std::vector<Option>& table) {
  using Adam = cpu_adam::AdamOptions;
  using enum cpu_adam::Optimizer;
  Domain types{.kind = Kind::name};
  for (const OptimizerType& type : kOptimizerTypes) types.names.push_back(type.name);
  Rows(table, {.section = "optimizer"})
      .own({"type", "`Adam` means AdamW unless `adam_w_mode` is false.", "AdamW"}, types,
           read_optimizer_type, value_of_optimizer_type);

  const auto rows = [&](Option::Condition applies) {
    return Rows(
        table,
        {.section = "optimizer.params", .applies = applies, .automatic = automatic::kDefault});
  };
  rows(nullptr)
      .own({"lr",
            "An update moves parameters by this learning rate, which a schedule changes from step "
            "to step.",
            "5e-05; with `optimizer`: 0.001; Adagrad: 0.01"},
           kNumber, read_lr,
           [](const Option&, const TrainOptions& options) {
             const ScheduleOptions& schedule = options.schedule;
             return json(is_deepspeed(schedule.kind) ? schedule.optimizer_lr : schedule.peak_lr);
           })
      .automatic = "5e-05, HF Trainer's";
  rows(nullptr).member<&TrainOptions::adam, &Adam::weight_decay>(
      {"weight_decay",
       "Each update takes this part, times the learning rate, off the parameters that "
       "`spillway.decay` names."});
  rows(uses<adam, lion>)
      .own(
          {"betas",
           "Adam, AdamW and Lion keep these parts of their running averages at each update.",
           "[0.9, 0.999]"},
          {.kind = Kind::pair, .high = 1, .below = true},
          [](ConfigFile& file, const Option& self, TrainOptions& options) {
            const json* const betas = file.value(self, options);
            if (betas == nullptr) return;
            options.adam.beta1 = (*betas)[0];
            options.adam.beta2 = (*betas)[1];
          },
          [](const Option&, const TrainOptions& options) {
            return json{options.adam.beta1, options.adam.beta2};
          });
  rows(uses<adam, adagrad>)
      .member<&TrainOptions::adam, &Adam::eps>(
          {"eps", "Adam, AdamW and Adagrad add this number to what they divide by.",
           "1e-8; Adagrad: 1e-10"},
          kPositive);
  rows(uses<adam>)
      .member<&TrainOptions::adam, &Adam::bias_correction>(
          {"bias_correction", "Adam and AdamW make up for averages that start from zero."});
  rows(uses<adam>)
      .own({"adam_w_mode",
            "With false, `Adam` adds weight decay to the gradient (L2); with true it is AdamW.",
            "true"},
           kFlag, read_adam_w_mode, [](const Option&, const TrainOptions& options) {
             return has_l2_adam(options) ? json(false) : json();
           });
  rows(uses<sgd>).member<&TrainOptions::adam, &Adam::beta1>(
      {"momentum", "SGD keeps this part of its running sum of gradients at each update.", "0"},
      kPart);
}

}  // namespace spillway::config::detail
