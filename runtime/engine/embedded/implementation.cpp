#include "runtime/engine/embedded/implementation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "cpu_adam/gradient_norm.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"
#include "runtime/engine/embedded/checkpoint.hpp"
#include "runtime/engine/embedded/values_source.hpp"

namespace spillway::engine {

EmbeddedTrainer::Implementation::Implementation(const EmbeddedOptions& options,
                                                std::span<const EmbeddedParameter> parameters)
    : options_(options),
      layout_(make_layout(options, parameters)),
      process_(getpid()),
      gate_(layout_.workload.blocks.size(), options.device_memory ? Ends::both : Ends::backward),
      cycle_(options, layout_, gate_),
      received_(parameters.size()),
      missing_(layout_.workload.blocks.size()),
      runner_(cycle_, gate_) {
  for (const EmbeddedParameter& parameter : parameters) names_.push_back(parameter.name);
  cycle_.initialize(ValuesSource(options.dtype, layout_.places, parameters));
  forget_received();
}

EmbeddedTrainer::Implementation::~Implementation() {
  try {
    runner_.park();
  } catch (const std::exception& error) {
    log_debug("a trainer ends after an error: {}", error.what());
  }
}

void EmbeddedTrainer::Implementation::check_process() const {
  check(!is_in_child(), ErrorCode::not_supported,
        "this process was forked from the one that made the trainer, and lacks its threads; make "
        "the trainer after the fork");
}

const EmbeddedPlace& EmbeddedTrainer::Implementation::place(std::uint32_t parameter) const {
  check_process();
  check(parameter < layout_.places.size(), ErrorCode::invalid_argument,
        fmt::format("there is no parameter {}; there are {}, counted from 0", parameter,
                    layout_.places.size()));
  return layout_.places[parameter];
}

void EmbeddedTrainer::Implementation::check_group(std::uint32_t group) const {
  check(group < options_.groups.size(), ErrorCode::invalid_argument,
        fmt::format("there is no group {}; there are {}, counted from 0", group,
                    options_.groups.size()));
}

void EmbeddedTrainer::Implementation::check_count(std::uint32_t parameter,
                                                  std::size_t count) const {
  const std::uint64_t elements = layout_.places[parameter].count;
  check(count == elements, ErrorCode::invalid_argument,
        fmt::format("the state of \"{}\" has {} elements, not {}", names_[parameter], elements,
                    count));
}

/// Counts a gradient of a parameter, and starts the plan of the step with the first of all. Returns
/// whether it is the parameter's first.
bool EmbeddedTrainer::Implementation::receive(std::uint32_t parameter) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t most = options_.gradients_per_step;
  check(runner_.phase() != Phase::gathered, ErrorCode::invalid_argument,
        fmt::format("a gradient of \"{}\" comes after grad_norm; call step or discard_gradients "
                    "first",
                    names_[parameter]));
  check(most == 0 || received_[parameter] < most, ErrorCode::invalid_argument,
        fmt::format("\"{}\" has had {} of its {} gradients of this step; call step, or say how "
                    "many a step has (gradients_per_step)",
                    names_[parameter], received_[parameter], most));
  // Streamed parameters have the backward pass that `enter` started.
  if (!streams()) runner_.start(EmbeddedPlan::step);
  any_received_ = true;
  return received_[parameter]++ == 0;
}

void EmbeddedTrainer::Implementation::forget_received() {
  const std::lock_guard lock(mutex_);
  std::ranges::fill(received_, 0);
  any_received_ = false;
  // Where nobody says how many there will be, `step` completes them.
  for (std::size_t block = 0; block < missing_.size(); ++block) {
    missing_[block] = layout_.parameters[block] * options_.gradients_per_step;
  }
}

void EmbeddedTrainer::Implementation::check_received() const {
  if (options_.missing_gradient == MissingGradient::zero) return;
  const std::uint32_t least = std::max(options_.gradients_per_step, 1U);
  const auto missing = std::ranges::find_if(received_, [&](auto n) { return n < least; });
  if (missing == received_.end()) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("\"{}\" has {} of the {} gradients of this step; run backward for it, leave "
                  "parameters without gradients out, or ask for zeros (missing_gradient)",
                  names_[static_cast<std::size_t>(missing - received_.begin())], *missing, least));
}

/// Returns once no update reads the gradient of the step before. Where parameters are streamed,
/// none runs beside passes.
void EmbeddedTrainer::Implementation::await_gradient_memory(const EmbeddedPlace& at) {
  if (!streams() && !gate_.wait_for_backward(at.block)) runner_.check_sound();
}

/// Returns once all gradients of the step are complete, and their norm can be had.
void EmbeddedTrainer::Implementation::gather() {
  check_process();
  runner_.check_sound();
  if (runner_.phase() == Phase::gathered) return;
  check_received();
  if (streams()) {
    runner_.park();
  } else {
    runner_.start(EmbeddedPlan::step);
  }
  for (std::size_t parameter = 0; parameter < received_.size(); ++parameter) {
    const EmbeddedPlace& at = layout_.places[parameter];
    if (received_[parameter] > 0) continue;
    await_gradient_memory(at);
    std::ranges::fill(cycle_.gradient(at), std::byte{});
  }
  // Norms of streamed parameters wait for nobody: all gradients are there.
  if (streams()) runner_.start(EmbeddedPlan::norms);
  runner_.finish();
}

/// Returns once nothing runs, and no update is pending.
void EmbeddedTrainer::Implementation::park() {
  check_process();
  check(!any_received_, ErrorCode::invalid_argument,
        "gradients of this step are there already; call step or discard_gradients first");
  runner_.park();
}

std::span<std::byte> EmbeddedTrainer::Implementation::values(std::uint32_t parameter) {
  const EmbeddedPlace& at = place(parameter);
  return cycle_.is_resident(at) ? resident_values(at) : cycle_.values(at);
}

void EmbeddedTrainer::Implementation::take_values(std::uint32_t parameter) {
  const EmbeddedPlace& at = place(parameter);
  park();
  if (cycle_.is_resident(at)) cycle_.download_resident(at);
  std::vector<float> master(at.count), m(at.count), v(at.count);
  widen(options_.dtype, cycle_.values(at), master);
  cycle_.read_state(at, {.master = {}, .m = m, .v = v});
  cycle_.write_state(at, {.master = master, .m = m, .v = v});
}

void EmbeddedTrainer::Implementation::add_gradient(std::uint32_t parameter,
                                                   std::span<const std::byte> gradient) {
  const EmbeddedPlace& at = place(parameter);
  const std::size_t bytes = at.count * size_of(options_.dtype);
  check(gradient.size() == bytes, ErrorCode::invalid_argument,
        fmt::format("the gradient of \"{}\" has {} bytes; {} elements of {} have {}",
                    names_[parameter], gradient.size(), at.count, name_of(options_.dtype), bytes));
  const bool first = receive(parameter);
  await_gradient_memory(at);
  const std::span<std::byte> target = cycle_.gradient(at);
  if (options_.gradients_per_step == 1) {
    std::ranges::copy(gradient, target.begin());
  } else {
    cpu_adam::accumulate(options_.isa.value_or(cpu_adam::best_isa()), options_.dtype,
                         gradient.data(), {reinterpret_cast<float*>(target.data()), at.count},
                         first);
  }
  const std::lock_guard lock(mutex_);
  if (missing_[at.block] == 0 || --missing_[at.block] > 0) return;
  // A unit's pass is over when the framework leaves it.
  if (!streams()) gate_.complete(at.block);
}

void EmbeddedTrainer::Implementation::discard_gradients() {
  check_process();
  runner_.park();
  forget_received();
}

double EmbeddedTrainer::Implementation::grad_norm(double divisor) {
  check(divisor > 0, ErrorCode::invalid_argument,
        fmt::format("gradient_divisor is {}; it must be above 0", divisor));
  gather();
  return cycle_.norm(layout_.places) / divisor;
}

EmbeddedResult EmbeddedTrainer::Implementation::step(const EmbeddedStep& step) {
  check(step.max_norm >= 0, ErrorCode::invalid_argument,
        fmt::format("max_norm is {}; it must be above 0, or 0 for no clipping", step.max_norm));
  const double norm = grad_norm(step.gradient_divisor);
  const bool updates = cycle_.decide(options_.groups, norm, step);
  const EmbeddedResult result{.step = cycle_.state().step, .grad_norm = norm, .skipped = !updates};
  forget_received();
  if (!updates) {
    runner_.park();
  } else if (options_.defers_updates) {
    runner_.start(EmbeddedPlan::step);
  } else {
    runner_.start(EmbeddedPlan::update);
    runner_.finish();
  }
  return result;
}

void EmbeddedTrainer::Implementation::wait(std::uint32_t parameter) {
  const EmbeddedPlace& at = place(parameter);
  runner_.check_sound();
  if (streams() || runner_.phase() != Phase::running) return;
  if (!gate_.wait_for_forward(at.block)) runner_.check_sound();
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
  const EmbeddedPlace& at = place(parameter);
  for (const auto part : {wide.master, wide.m, wide.v}) {
    if (!part.empty()) check_count(parameter, part.size());
  }
  park();
  cycle_.read_state(at, wide);
}

void EmbeddedTrainer::Implementation::write_state(std::uint32_t parameter,
                                                  const cpu_adam::ConstWideState& wide) {
  const EmbeddedPlace& at = place(parameter);
  check_count(parameter, wide.master.size());
  for (const auto part : {wide.m, wide.v}) {
    if (!part.empty()) check_count(parameter, part.size());
  }
  park();
  cycle_.write_state(at, wide);
}

void EmbeddedTrainer::Implementation::set_updates(std::uint64_t updates) {
  park();
  cycle_.set_updates(updates);
}

void EmbeddedTrainer::Implementation::save(const std::filesystem::path& directory) {
  park();
  NewCheckpoint checkpoint(directory);
  cycle_.save(checkpoint.path());
  checkpoint.complete(options_, names_, layout_);
}

void EmbeddedTrainer::Implementation::load(const std::filesystem::path& directory) {
  park();
  check_checkpoint(directory, options_, names_, layout_);
  cycle_.load(directory);
}

}  // namespace spillway::engine
