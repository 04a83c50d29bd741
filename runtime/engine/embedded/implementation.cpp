#include "runtime/engine/embedded/implementation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/mutex.hpp"
#include "runtime/engine/embedded/checkpoint.hpp"
#include "runtime/engine/embedded/values_source.hpp"

namespace spillway::engine {
namespace {

/// The reciprocals of divisors between these are normal numbers of fp32.
constexpr double kLeastDivisor = 3e-39;
constexpr double kMostDivisor = 8e37;

}  // namespace

EmbeddedTrainer::Implementation::Implementation(const EmbeddedOptions& options,
                                                std::span<const EmbeddedParameter> parameters,
                                                std::span<const FrozenTensor> frozen)
    : options_(options),
      layout_(make_layout(options, parameters, frozen)),
      process_(getpid()),
      gate_(layout_.workload.blocks.size(), options.device_memory ? Ends::both : Ends::backward),
      cycle_(options, layout_, gate_),
      runner_(cycle_, gate_),
      gradients_(options_, layout_, names_, {.cycle = cycle_, .gate = gate_, .runner = runner_}) {
  std::uint64_t leaves = 0;
  for (const EmbeddedParameter& parameter : parameters) {
    names_.push_back(parameter.name);
    elements_.push_back(parameter.elements);
    leaves += round_up(parameter.elements, kLeafParameters) / kLeafParameters;
  }
  leaf_sums_.reserve(leaves);
  torn_.resize(parameters.size());
  cycle_.initialize(ValuesSource(options.dtype, layout_.places, parameters));
  for (std::size_t i = 0; i < frozen.size(); ++i) {
    frozen_names_.push_back(frozen[i].name);
    cycle_.write_frozen(layout_.frozen[i], {frozen[i].values, frozen[i].bytes.value()});
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

void EmbeddedTrainer::Implementation::check_whole(std::uint32_t parameter) const {
  check(!torn_[parameter].any(), ErrorCode::corrupt_data,
        fmt::format("the state of \"{}\" is new in a part alone, since a call that was to replace "
                    "it has failed; load a checkpoint, or make that call again",
                    names_[parameter]));
}

void EmbeddedTrainer::Implementation::check_whole() const {
  const auto torn = std::ranges::find_if(torn_, &Torn::any);
  if (torn != torn_.end()) check_whole(static_cast<std::uint32_t>(torn - torn_.begin()));
}

/// Returns once all gradients of the step are complete, and their norm can be had.
void EmbeddedTrainer::Implementation::gather() {
  check_process();
  check_left();
  runner_.check_sound();
  check_whole();
  if (runner_.phase() == Phase::gathered) return;
  gradients_.check_complete();
  if (streams()) {
    runner_.park();
  } else {
    runner_.start(EmbeddedPlan::step);
  }
  gradients_.land();
  gradients_.fill_missing();
  // Norms of streamed parameters wait for nobody: all gradients are there.
  if (streams()) runner_.start(EmbeddedPlan::norms);
  runner_.finish();
}

/// Returns once nothing runs, and no update is pending. Gradients of the step under way wait on.
void EmbeddedTrainer::Implementation::rest() {
  check_process();
  check_left();
  gradients_.land();
  runner_.park();
}

/// Rests likewise. Throws `Error{invalid_argument}` if the step has gradients already.
void EmbeddedTrainer::Implementation::park() {
  check(!gradients_.any(), ErrorCode::invalid_argument,
        "gradients of this step are there already; call step or discard_gradients first");
  rest();
}

std::span<std::byte> EmbeddedTrainer::Implementation::values(std::uint32_t parameter) {
  const EmbeddedPlace& at = place(parameter);
  return cycle_.is_resident(at) ? resident_values(at) : cycle_.values(at);
}

void EmbeddedTrainer::Implementation::take_values(std::uint32_t parameter,
                                                  const offload::ForeignWork& writers,
                                                  TakenValues which) {
  const EmbeddedPlace& at = place(parameter);
  park();
  cycle_.order_downloads(writers);
  if (cycle_.is_resident(at)) cycle_.download_resident(at);
  torn_[parameter].masters = true;
  cycle_.take_values(at, which);
  torn_[parameter].masters = false;
}

void EmbeddedTrainer::Implementation::discard_gradients() {
  check_process();
  check_left();
  gradients_.land();
  runner_.park();
  gradients_.forget();
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
  for (const EmbeddedPlace& place : layout_.places) {
    const std::span<const double> sums = cycle_.leaf_sums(place);
    leaf_sums_.insert(leaf_sums_.end(), sums.begin(), sums.end());
  }
  return leaf_sums_;
}

EmbeddedResult EmbeddedTrainer::Implementation::step(const EmbeddedStep& step) {
  check(step.max_norm >= 0, ErrorCode::invalid_argument,
        fmt::format("max_norm is {}; it must be above 0, or 0 for no clipping", step.max_norm));
  const double own = grad_norm(step.gradient_divisor);
  const double norm = step.grad_norm.value_or(own);
  cycle_.order_uploads(step.readers);
  const bool updates = cycle_.decide(options_.groups, norm, step, gradients_.skipped());
  const EmbeddedResult result{.step = cycle_.state().step, .grad_norm = norm, .skipped = !updates};
  gradients_.forget();
  if (!updates) {
    runner_.park();
  } else if (options_.defers_updates) {
    begin(EmbeddedPlan::step);
  } else {
    runner_.start(EmbeddedPlan::update);
    runner_.finish();
  }
  return result;
}

std::vector<plan::MemoryItem> EmbeddedTrainer::Implementation::memory() const {
  std::vector<plan::MemoryItem> items = cycle_.memory();
  if (const Bytes landing = landing_bytes(options_, layout_); landing > Bytes{}) {
    items.push_back({.tier = plan::Tier::host, .what = "landing gradients", .bytes = landing});
  }
  return items;
}

void EmbeddedTrainer::Implementation::wait(std::uint32_t parameter) {
  const EmbeddedPlace& at = place(parameter);
  const std::optional<std::uint64_t> update = runner_.update();
  if (!update) return runner_.check_sound();
  if (at.block < layout_.residents || !streams()) {
    if (!gate_.wait_for_forward(at.block, *update)) runner_.check_sound();
    return;
  }
  const Lock lock(passes_);
  if (runner_.update() != update) return runner_.check_sound();
  check(!inside_, ErrorCode::invalid_argument,
        fmt::format("\"{}\" is waited for before unit {} is left", names_[parameter],
                    inside_.value_or(0)));
  runner_.park();
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
  check_whole(parameter);
  cycle_.read_state(at, wide);
}

void EmbeddedTrainer::Implementation::write_state(std::uint32_t parameter,
                                                  const cpu_adam::ConstWideState& wide) {
  const EmbeddedPlace& at = place(parameter);
  for (const auto part : {wide.master, wide.m, wide.v}) {
    if (!part.empty()) check_count(parameter, part.size());
  }
  park();
  const bool keeps_master = wide.master.empty();
  if (keeps_master && torn_[parameter].masters) check_whole(parameter);
  torn_[parameter] = {.masters = !keeps_master, .moments = true};
  cycle_.write_state(at, wide);
  torn_[parameter] = {};
}

void EmbeddedTrainer::Implementation::set_updates(std::uint64_t updates) {
  park();
  cycle_.set_updates(updates);
}

void EmbeddedTrainer::Implementation::set_updates(std::uint32_t parameter, std::uint64_t updates) {
  static_cast<void>(place(parameter));
  park();
  cycle_.set_updates(parameter, updates);
}

std::shared_ptr<ParameterMemory> EmbeddedTrainer::Implementation::take_memory() noexcept {
  come_to_rest();
  return cycle_.take_memory();
}

void EmbeddedTrainer::Implementation::save(const std::filesystem::path& directory) {
  rest();
  check_whole();
  NewCheckpoint checkpoint(
      directory, describe_checkpoint(directory, options_, names_, layout_, cycle_.updates()));
  cycle_.save(checkpoint.path());
  checkpoint.complete();
}

void EmbeddedTrainer::Implementation::load(const std::filesystem::path& directory) {
  park();
  const std::vector<std::uint64_t> updates = check_checkpoint(directory, options_, names_, layout_);
  const std::unique_ptr<SavedState> saved = cycle_.open_checkpoint(directory);
  std::ranges::fill(torn_, Torn{.masters = true, .moments = true});
  cycle_.load(*saved);
  for (std::uint32_t i = 0; i < updates.size(); ++i) cycle_.set_updates(i, updates[i]);
  std::ranges::fill(torn_, Torn{});
}

}  // namespace spillway::engine
