#include "runtime/engine/embedded/implementation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"
#include "runtime/engine/embedded/checkpoint.hpp"
#include "runtime/engine/embedded/needs.hpp"
#include "runtime/engine/embedded/values_source.hpp"

namespace spillway::engine {
namespace {

/// The reciprocals of divisors between these are normal numbers of fp32.
constexpr double kLeastDivisor = 3e-39;
constexpr double kMostDivisor = 8e37;

/// Throws `Error{invalid_argument}` also for what has no values to start from.
EmbeddedLayout layout_of(const EmbeddedOptions& options,
                         std::span<const EmbeddedParameter> parameters,
                         std::span<const FrozenTensor> frozen) {
  EmbeddedLayout layout = make_layout(options, parameters, frozen);
  for (const EmbeddedParameter& parameter : parameters) {
    check(parameter.values != nullptr, ErrorCode::invalid_argument,
          fmt::format("parameter \"{}\" has no values to start from", parameter.name));
  }
  for (const FrozenTensor& tensor : frozen) {
    check(tensor.values != nullptr, ErrorCode::invalid_argument,
          fmt::format("\"{}\" is frozen and has no values", tensor.name));
  }
  return layout;
}

}  // namespace

EmbeddedTrainer::Implementation::Implementation(const EmbeddedOptions& options,
                                                std::span<const EmbeddedParameter> parameters,
                                                std::span<const FrozenTensor> frozen)
    : options_(options),
      layout_(layout_of(options, parameters, frozen)),
      process_(getpid()),
      gate_(layout_.workload.blocks.size(), options.device_memory ? Ends::both : Ends::backward),
      waited_(layout_.workload.blocks.size()),
      cycle_(options, layout_, gate_),
      values_(cycle_.values()),
      parameters_(cycle_.parameters()),
      runner_(cycle_, gate_),
      passes_(layout_, values_, gate_, runner_),
      gradients_(options_, layout_,
                 {.values = values_, .record = cycle_.record(), .gate = gate_, .runner = runner_}) {
  std::uint64_t leaves = 0;
  for (const EmbeddedParameter& parameter : parameters) {
    elements_.push_back(parameter.elements);
    leaves += round_up(parameter.elements, kLeafParameters) / kLeafParameters;
  }
  leaf_sums_.reserve(leaves);
  cycle_.initialize(ValuesSource(options.dtype, layout_.ranges, parameters));
  for (std::size_t i = 0; i < frozen.size(); ++i) {
    values_.write_frozen(layout_.frozen[i], {frozen[i].values, frozen[i].bytes.value()});
  }
}

EmbeddedTrainer::Implementation::~Implementation() { come_to_rest(); }

void EmbeddedTrainer::Implementation::come_to_rest() noexcept {
  const auto attempt = [](const auto& call) {
    try {
      call();
    } catch (const std::exception& error) {
      log_debug("a trainer ends after an error: {}", error.what());
    }
  };
  attempt([&] { gradients_.land(); });
  attempt([&] { runner_.park(); });
}

void EmbeddedTrainer::Implementation::check_process() const {
  check(!is_in_child(), ErrorCode::not_supported,
        "this process was forked from the one that made the trainer, and lacks its threads; make "
        "the trainer after the fork");
}

const ParameterRange& EmbeddedTrainer::Implementation::range(std::uint32_t parameter) const {
  check_process();
  check_number("parameter", parameter, layout_.ranges.size());
  return layout_.ranges[parameter];
}

void EmbeddedTrainer::Implementation::check_group(std::uint32_t group) const {
  check_number("group", group, options_.groups.size());
}

void EmbeddedTrainer::Implementation::check_count(std::uint32_t parameter,
                                                  std::size_t count) const {
  const std::uint64_t elements = range(parameter).count;
  check(count == elements, ErrorCode::invalid_argument,
        fmt::format("the state of \"{}\" has {} elements, not {}", layout_.names[parameter],
                    elements, count));
}

/// A count of 0 is that of an array which a call does not want, or does not have.
void EmbeddedTrainer::Implementation::check_counts(std::uint32_t parameter,
                                                   std::span<const std::size_t> counts) const {
  for (const std::size_t count : counts) {
    if (count != 0) check_count(parameter, count);
  }
}

/// Throws if the deferred update of a parameter may have run while its values were written: nobody
/// has waited for it.
void EmbeddedTrainer::Implementation::check_waited(std::uint32_t parameter) {
  const std::optional<std::uint64_t> update = runner_.update();
  if (!update) return;
  const std::uint32_t block = layout_.ranges[parameter].block;
  const bool is_streamed = streams() && block >= layout_.residents;
  check(is_streamed ? gate_.has_begun_forward(block, *update) : waited_[block] == *update,
        ErrorCode::invalid_argument,
        fmt::format("\"{}\" was written while its deferred update may have been under way: call "
                    "synchronize or wait first, then write it",
                    layout_.names[parameter]));
}

const FrozenRange& EmbeddedTrainer::Implementation::frozen_range(std::uint32_t frozen) const {
  check_process();
  check_number("frozen tensor", frozen, layout_.frozen.size());
  return layout_.frozen[frozen];
}

/// Returns once all gradients of the step are complete, and their norm can be had.
void EmbeddedTrainer::Implementation::gather() {
  check_process();
  passes_.check_left();
  runner_.check_sound();
  parameters_.check_whole();
  if (runner_.phase() == Phase::gathered) return;
  gradients_.check_complete();
  const EmbeddedPlan plan = gathering_plan(layout_.workload);
  if (streams()) {
    runner_.park();
  } else {
    runner_.start(plan);
  }
  gradients_.land();
  gradients_.fill_missing();
  // Norms of streamed parameters wait for nobody: all gradients are there.
  if (streams()) runner_.start(plan);
  runner_.finish();
}

/// Returns once nothing runs, and no update is pending. Gradients of the step under way wait on.
void EmbeddedTrainer::Implementation::rest() {
  check_process();
  passes_.check_left();
  gradients_.land();
  runner_.park();
}

/// Rests likewise. Throws `Error{invalid_argument}` if the step has gradients already.
void EmbeddedTrainer::Implementation::park() {
  check(!gradients_.any(), ErrorCode::invalid_argument,
        "gradients of this step are there already; call step or discard_gradients first");
  rest();
}

std::span<std::byte> EmbeddedTrainer::Implementation::resident_values(const ParameterRange& at) {
  const auto values = values_.resident(at);
  return {values.address(), values.size()};
}

std::span<std::byte> EmbeddedTrainer::Implementation::values(std::uint32_t parameter) {
  const ParameterRange& at = range(parameter);
  return values_.is_resident(at) ? resident_values(at) : values_.host(at);
}

std::span<std::byte> EmbeddedTrainer::Implementation::device_values(std::uint32_t parameter) {
  const ParameterRange& at = range(parameter);
  return values_.is_resident(at) ? resident_values(at) : passes_.parameter(parameter);
}

std::span<std::byte> EmbeddedTrainer::Implementation::frozen_values(std::uint32_t frozen) {
  return values_.frozen(frozen_range(frozen));
}

std::span<std::byte> EmbeddedTrainer::Implementation::device_frozen(std::uint32_t frozen) {
  const FrozenRange& at = frozen_range(frozen);
  return at.block ? passes_.frozen(frozen) : values_.frozen(at);
}

void EmbeddedTrainer::Implementation::enter(std::uint32_t unit, EmbeddedPass pass) {
  check_process();
  passes_.enter(unit, pass);
}

void EmbeddedTrainer::Implementation::leave(std::uint32_t unit,
                                            const offload::ForeignWork& readers) {
  check_process();
  passes_.leave(unit, readers);
}

void EmbeddedTrainer::Implementation::forget_uploads() {
  check_process();
  passes_.check_left();
  if (streams() && runner_.phase() != Phase::gathered) runner_.park();
}

void EmbeddedTrainer::Implementation::take_values(std::uint32_t parameter,
                                                  const offload::ForeignWork& writers,
                                                  TakenValues which) {
  const ParameterRange& at = range(parameter);
  check_waited(parameter);
  park();
  values_.order_downloads(writers);
  if (values_.is_resident(at)) values_.download(at);
  parameters_.take_values(parameter, which);
}

void EmbeddedTrainer::Implementation::discard_gradients() {
  check_process();
  passes_.check_left();
  gradients_.land();
  runner_.park();
  gradients_.forget();
}

void EmbeddedTrainer::Implementation::discard_gradient(std::uint32_t parameter) {
  static_cast<void>(range(parameter));
  rest();
  gradients_.discard(parameter);
}

void EmbeddedTrainer::Implementation::read_gradient(std::uint32_t parameter, std::span<float> sum) {
  check_count(parameter, sum.size());
  rest();
  gradients_.read(parameter, sum);
}

void EmbeddedTrainer::Implementation::write_gradient(std::uint32_t parameter,
                                                     std::span<const float> sum) {
  check_count(parameter, sum.size());
  rest();
  gradients_.write(parameter, sum);
}

double EmbeddedTrainer::Implementation::grad_norm(double divisor) {
  check(divisor >= kLeastDivisor && divisor <= kMostDivisor, ErrorCode::invalid_argument,
        fmt::format("gradient_divisor is {}; it must be above 0, from {:.2} to {:.2}: gradients "
                    "are multiplied by its reciprocal in fp32",
                    divisor, kLeastDivisor, kMostDivisor));
  return norm_of(leaf_sums(), elements_) / divisor;
}

std::span<const double> EmbeddedTrainer::Implementation::leaf_sums() {
  gather();
  leaf_sums_.clear();
  for (const ParameterRange& range : layout_.ranges) {
    const std::span<const double> sums = cycle_.leaf_sums(range);
    leaf_sums_.insert(leaf_sums_.end(), sums.begin(), sums.end());
  }
  return leaf_sums_;
}

EmbeddedResult EmbeddedTrainer::Implementation::step(const EmbeddedStep& step) {
  check(step.max_norm >= 0, ErrorCode::invalid_argument,
        fmt::format("max_norm is {}; it must be above 0, or 0 for no clipping", step.max_norm));
  const double own = grad_norm(step.gradient_divisor);
  const double norm = step.grad_norm.value_or(own);
  values_.order_uploads(step.readers);
  const bool updates = cycle_.decide(options_.groups, norm, step, gradients_.skipped());
  const EmbeddedResult result{.step = cycle_.state().step, .grad_norm = norm, .skipped = !updates};
  gradients_.forget();
  if (!updates) {
    runner_.park();
  } else if (options_.defers_updates) {
    passes_.begin(updating_plan(options_));
  } else {
    runner_.start(updating_plan(options_));
    runner_.finish();
  }
  return result;
}

std::vector<plan::MemoryItem> EmbeddedTrainer::Implementation::memory() const {
  return needs_of(options_, layout_, embedded_placement(options_, layout_)).items;
}

void EmbeddedTrainer::Implementation::wait(std::uint32_t parameter) {
  const ParameterRange& at = range(parameter);
  const std::optional<std::uint64_t> update = runner_.update();
  if (!update) return runner_.check_sound();
  if (at.block < layout_.residents || !streams()) {
    if (!gate_.wait_for_forward(at.block, *update)) return runner_.check_sound();
    waited_[at.block] = *update;
    return;
  }
  passes_.await_update(parameter, *update);
}

void EmbeddedTrainer::Implementation::set_group(std::uint32_t group,
                                                const cpu_adam::AdamOptions& wanted) {
  check_group(group);
  check(wanted.optimizer == options_.groups[group].optimizer, ErrorCode::invalid_argument,
        fmt::format("the optimizer of group {} cannot change; make a new trainer", group));
  static_cast<void>(cpu_adam::make_scalars(wanted, 1, 1));
  options_.groups[group] = wanted;
}

void EmbeddedTrainer::Implementation::read_state(std::uint32_t parameter,
                                                 const cpu_adam::WideState& wide) {
  static_cast<void>(range(parameter));
  check_counts(parameter, std::array{wide.master.size(), wide.m.size(), wide.v.size()});
  park();
  parameters_.read(parameter, wide);
}

void EmbeddedTrainer::Implementation::write_state(std::uint32_t parameter,
                                                  const cpu_adam::ConstWideState& wide) {
  static_cast<void>(range(parameter));
  check_counts(parameter, std::array{wide.master.size(), wide.m.size(), wide.v.size()});
  park();
  parameters_.write(parameter, wide);
}

void EmbeddedTrainer::Implementation::set_updates(std::uint64_t updates) {
  park();
  cycle_.set_updates(updates);
}

void EmbeddedTrainer::Implementation::set_updates(std::uint32_t parameter, std::uint64_t updates) {
  static_cast<void>(range(parameter));
  park();
  cycle_.set_updates(parameter, updates);
}

EndedMemory EmbeddedTrainer::Implementation::take_memory() noexcept {
  come_to_rest();
  return values_.take_memory();
}

void EmbeddedTrainer::Implementation::save(const std::filesystem::path& directory) {
  rest();
  parameters_.check_whole();
  NewCheckpoint checkpoint(directory,
                           describe_checkpoint(directory, options_, layout_, cycle_.updates()));
  cycle_.save(checkpoint.path());
  checkpoint.complete();
}

void EmbeddedTrainer::Implementation::load(const std::filesystem::path& directory) {
  park();
  const std::vector<std::uint64_t> updates = check_checkpoint(directory, options_, layout_);
  const std::unique_ptr<SavedState> saved = cycle_.open_checkpoint(directory);
  cycle_.load(*saved, updates);
}

}  // namespace spillway::engine
