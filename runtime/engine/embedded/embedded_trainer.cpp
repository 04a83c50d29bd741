#include "runtime/engine/embedded_trainer.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <utility>
#include <vector>

#include "cpu_adam/gradient_norm.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/embedded/parts.hpp"
#include "runtime/engine/embedded/plan/needs.hpp"

namespace spillway::engine {

double norm_of(std::span<const double> leaf_sums, std::span<const std::uint64_t> elements) {
  double total = 0;
  std::size_t first = 0;
  for (const std::uint64_t count : elements) {
    const std::size_t leaves = round_up(count, kLeafParameters) / kLeafParameters;
    check(leaves <= leaf_sums.size() - first, ErrorCode::invalid_argument,
          fmt::format("{} sums of leaves are too few for these parameters; pass one for each {} "
                      "elements",
                      leaf_sums.size(), kLeafParameters));
    total += cpu_adam::sum_leaves(leaf_sums.subspan(first, leaves));
    first += leaves;
  }
  return std::sqrt(total);
}

namespace {

/// Throws `Error{invalid_argument}` unless `count` is the parameter's number of elements.
void check_count(const EmbeddedParts& parts, std::uint32_t parameter, std::size_t count) {
  const std::uint64_t elements = parts.range(parameter).count;
  check(count == elements, ErrorCode::invalid_argument,
        fmt::format("the state of \"{}\" has {} elements, not {}", parts.layout.names[parameter],
                    elements, count));
}

/// Throws likewise. A count of 0 is that of an array which a call does not want, or does not have.
void check_counts(const EmbeddedParts& parts, std::uint32_t parameter,
                  std::initializer_list<std::size_t> counts) {
  static_cast<void>(parts.range(parameter));
  for (const std::size_t count : counts) {
    if (count != 0) check_count(parts, parameter, count);
  }
}

}  // namespace

EmbeddedTrainer::EmbeddedTrainer(const EmbeddedOptions& options,
                                 std::span<const EmbeddedParameter> parameters,
                                 std::span<const FrozenTensor> frozen)
    : parts_(std::make_unique<EmbeddedParts>(options, parameters, frozen)) {}

EmbeddedTrainer::~EmbeddedTrainer() {
  // The threads of the object are the parent's: nothing here can be joined or freed.
  if (parts_ != nullptr && parts_->process.is_child()) static_cast<void>(parts_.release());
}

EndedMemory EmbeddedTrainer::end() noexcept {
  if (parts_->process.is_child()) {
    static_cast<void>(parts_.release());
    return {};
  }
  parts_->come_to_rest();
  EndedMemory memory = parts_->values.take_memory();
  parts_.reset();
  return memory;
}

std::size_t EmbeddedTrainer::size() const { return parts_->layout.names.size(); }

const EmbeddedOptions& EmbeddedTrainer::options() const { return parts_->options; }

const std::string& EmbeddedTrainer::name(std::uint32_t parameter) const {
  static_cast<void>(parts_->range(parameter));
  return parts_->layout.names[parameter];
}

// Where tensors are

std::span<std::byte> EmbeddedTrainer::values(std::uint32_t parameter) {
  return parts_->values.kept(parts_->range(parameter));
}

bool EmbeddedTrainer::keeps_on_gpu(std::uint32_t parameter) const {
  const ParameterRange& at = parts_->range(parameter);
  return options().device == config::DeviceKind::cuda && parts_->values.is_resident(at);
}

std::span<std::byte> EmbeddedTrainer::device_values(std::uint32_t parameter) {
  parts_->check_device();
  const ParameterRange& at = parts_->range(parameter);
  return parts_->values.is_resident(at) ? parts_->values.kept(at)
                                        : parts_->passes.parameter(parameter);
}

std::span<std::byte> EmbeddedTrainer::frozen_values(std::uint32_t frozen) {
  return parts_->values.frozen(parts_->frozen_range(frozen));
}

void EmbeddedTrainer::write_frozen(std::span<const FrozenValues> values) {
  std::vector<FrozenPiece> pieces;
  for (const FrozenValues& each : values) {
    const FrozenRange& range = parts_->frozen_range(each.frozen);
    const std::string& name = parts_->layout.frozen_names[each.frozen];
    check(range.block.has_value(), ErrorCode::invalid_argument,
          fmt::format("\"{}\" is of no unit; write it where it is kept", name));
    check(each.values.size() == range.bytes, ErrorCode::invalid_argument,
          fmt::format("\"{}\" has {} bytes, not {}", name, range.bytes, each.values.size()));
    pieces.push_back({range, each.values});
  }
  parts_->passes.forget_uploads();
  parts_->values.write_frozen(std::move(pieces));
}

bool EmbeddedTrainer::keeps_frozen_on_gpu(std::uint32_t frozen) const {
  const FrozenRange& at = parts_->frozen_range(frozen);
  return options().device == config::DeviceKind::cuda && !at.block && !is_released();
}

std::span<std::byte> EmbeddedTrainer::device_frozen(std::uint32_t frozen) {
  parts_->check_device();
  const FrozenRange& at = parts_->frozen_range(frozen);
  return at.block ? parts_->passes.frozen(frozen) : parts_->values.frozen(at);
}

void EmbeddedTrainer::take_values(std::uint32_t parameter, const offload::ExternalWork& writers,
                                  TakenValues which) {
  static_cast<void>(parts_->range(parameter));
  parts_->deferred.check_waited(parameter);
  parts_->rest();
  parts_->state.take_values(parameter, writers, which);
}

// Passes

void EmbeddedTrainer::forget_uploads() {
  parts_->process.check();
  parts_->passes.forget_uploads();
}

void EmbeddedTrainer::enter(std::uint32_t unit, EmbeddedPass pass) {
  parts_->check_device();
  parts_->passes.enter(unit, pass);
}

void EmbeddedTrainer::leave(std::uint32_t unit, const offload::ExternalWork& readers) {
  parts_->process.check();
  parts_->passes.leave(unit, readers);
}

void EmbeddedTrainer::release_device(const offload::ExternalWork& users) {
  parts_->process.check();
  if (is_released()) return;
  parts_->park();
  parts_->state.unstage();
  parts_->values.release_device(parts_->layout, users);
}

void EmbeddedTrainer::resume_device() {
  parts_->process.check();
  if (!is_released()) return;
  parts_->state.unstage();
  parts_->values.resume_device(parts_->layout);
}

bool EmbeddedTrainer::is_released() const { return parts_->values.is_released(); }

// Gradients

void EmbeddedTrainer::add_gradient(std::uint32_t parameter, std::span<const std::byte> gradient) {
  parts_->check_device();
  static_cast<void>(parts_->range(parameter));
  parts_->gradients.add(parameter, gradient);
}

void EmbeddedTrainer::add_device_gradient(std::uint32_t parameter, const DeviceGradient& gradient) {
  parts_->check_device();
  static_cast<void>(parts_->range(parameter));
  parts_->gradients.add_from_device(parameter, gradient);
}

bool EmbeddedTrainer::reads_gradient(std::uint32_t parameter) const {
  static_cast<void>(parts_->range(parameter));
  return parts_->gradients.reads(parameter);
}

void EmbeddedTrainer::discard_gradients() {
  parts_->rest();
  parts_->gradient_counts.forget();
}

void EmbeddedTrainer::discard_gradient(std::uint32_t parameter) {
  static_cast<void>(parts_->range(parameter));
  parts_->rest();
  parts_->gradient_counts.forget(parameter);
}

void EmbeddedTrainer::read_gradient(std::uint32_t parameter, std::span<float> sum) {
  check_count(*parts_, parameter, sum.size());
  parts_->rest();
  parts_->gradients.read(parameter, sum);
}

void EmbeddedTrainer::read_last_gradient(std::uint32_t parameter, std::span<float> sum) const {
  check_count(*parts_, parameter, sum.size());
  parts_->gradients.read_last(parameter, sum);
}

void EmbeddedTrainer::write_gradient(std::uint32_t parameter, std::span<const float> sum) {
  check_count(*parts_, parameter, sum.size());
  parts_->rest();
  parts_->gradients.write(parameter, sum);
}

void EmbeddedTrainer::reopen_gradients() { parts_->rest(); }

// Steps and updates

double EmbeddedTrainer::grad_norm(double gradient_divisor) {
  parts_->check_device();
  return parts_->step_end.grad_norm(gradient_divisor);
}

std::span<const double> EmbeddedTrainer::leaf_sums() {
  parts_->check_device();
  return parts_->step_end.leaf_sums();
}

EmbeddedResult EmbeddedTrainer::step(const EmbeddedStep& step) {
  parts_->check_device();
  return parts_->step_end.step(step);
}

void EmbeddedTrainer::wait(std::uint32_t parameter) {
  static_cast<void>(parts_->range(parameter));
  parts_->deferred.wait(parameter);
}

void EmbeddedTrainer::wait() {
  for (std::uint32_t parameter = 0; parameter < size(); ++parameter) wait(parameter);
}

const cpu_adam::AdamOptions& EmbeddedTrainer::group(std::uint32_t group) const {
  return parts_->updates.group(group);
}

void EmbeddedTrainer::set_group(std::uint32_t group, const cpu_adam::AdamOptions& options) {
  parts_->updates.set_group(group, options);
}

std::uint64_t EmbeddedTrainer::steps() const { return parts_->updates.steps(); }

std::uint64_t EmbeddedTrainer::updates() const { return parts_->updates.updates(); }

std::uint64_t EmbeddedTrainer::updates(std::uint32_t parameter) const {
  static_cast<void>(parts_->range(parameter));
  return parts_->updates.counts()[parameter];
}

void EmbeddedTrainer::set_updates(std::uint32_t parameter, std::uint64_t updates) {
  static_cast<void>(parts_->range(parameter));
  parts_->park();
  parts_->updates.set_count(parameter, updates);
}

void EmbeddedTrainer::set_updates(std::uint64_t updates) {
  parts_->park();
  parts_->updates.set_counts(updates);
}

// State

void EmbeddedTrainer::read_state(std::uint32_t parameter, std::span<float> master,
                                 std::span<float> m, std::span<float> v) {
  check_counts(*parts_, parameter, {master.size(), m.size(), v.size()});
  parts_->rest();
  parts_->state.read(parameter, {.master = master, .m = m, .v = v});
}

void EmbeddedTrainer::write_state(std::uint32_t parameter, std::span<const float> master,
                                  std::span<const float> m, std::span<const float> v) {
  check_counts(*parts_, parameter, {master.size(), m.size(), v.size()});
  parts_->park();
  parts_->state.write(parameter, {.master = master, .m = m, .v = v});
}

void EmbeddedTrainer::save(const std::filesystem::path& directory) {
  parts_->rest();
  parts_->checkpoints.save(directory);
}

void EmbeddedTrainer::load(const std::filesystem::path& directory) {
  parts_->check_device();
  parts_->park();
  parts_->checkpoints.load(directory);
}

// What it takes and uses

std::vector<plan::MemoryItem> EmbeddedTrainer::memory() const {
  return needs_of(parts_->options, parts_->layout, parts_->engine.placement()).items;
}

EmbeddedUse EmbeddedTrainer::use() const { return parts_->record.use(); }

void EmbeddedTrainer::write_trace(const std::filesystem::path& path) const {
  parts_->record.write_trace(path);
}

}  // namespace spillway::engine
