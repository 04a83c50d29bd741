#include "runtime/engine/embedded_trainer.hpp"

#include <fmt/format.h>

#include <cmath>

#include "cpu_adam/gradient_norm.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/embedded/implementation.hpp"

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

EmbeddedTrainer::EmbeddedTrainer(const EmbeddedOptions& options,
                                 std::span<const EmbeddedParameter> parameters,
                                 std::span<const FrozenTensor> frozen)
    : implementation_(std::make_unique<Implementation>(options, parameters, frozen)) {}

EmbeddedTrainer::~EmbeddedTrainer() {
  // The threads of the object are the parent's: nothing here can be joined or freed.
  if (implementation_ != nullptr && implementation_->is_in_child())
    static_cast<void>(implementation_.release());
}

EndedMemory EmbeddedTrainer::end() noexcept {
  if (implementation_->is_in_child()) {
    static_cast<void>(implementation_.release());
    return {};
  }
  EndedMemory memory = implementation_->take_memory();
  implementation_.reset();
  return memory;
}

std::size_t EmbeddedTrainer::size() const { return implementation_->names().size(); }

const EmbeddedOptions& EmbeddedTrainer::options() const { return implementation_->options(); }

const std::string& EmbeddedTrainer::name(std::uint32_t parameter) const {
  static_cast<void>(implementation_->range(parameter));
  return implementation_->names()[parameter];
}

std::span<std::byte> EmbeddedTrainer::values(std::uint32_t parameter) {
  return implementation_->values(parameter);
}

bool EmbeddedTrainer::keeps_on_gpu(std::uint32_t parameter) const {
  const ParameterRange& at = implementation_->range(parameter);
  return options().device == config::DeviceKind::cuda &&
         implementation_->cycle().values().is_resident(at);
}

void EmbeddedTrainer::enter(std::uint32_t unit, EmbeddedPass pass) {
  implementation_->enter(unit, pass);
}

std::span<std::byte> EmbeddedTrainer::device_values(std::uint32_t parameter) {
  return implementation_->device_values(parameter);
}

std::span<std::byte> EmbeddedTrainer::frozen_values(std::uint32_t frozen) {
  return implementation_->frozen_values(frozen);
}

std::span<std::byte> EmbeddedTrainer::device_frozen(std::uint32_t frozen) {
  return implementation_->device_frozen(frozen);
}

void EmbeddedTrainer::leave(std::uint32_t unit, const offload::ForeignWork& readers) {
  implementation_->leave(unit, readers);
}

void EmbeddedTrainer::take_values(std::uint32_t parameter, const offload::ForeignWork& writers,
                                  TakenValues which) {
  implementation_->take_values(parameter, writers, which);
}

void EmbeddedTrainer::forget_uploads() { implementation_->forget_uploads(); }

void EmbeddedTrainer::add_gradient(std::uint32_t parameter, std::span<const std::byte> gradient) {
  static_cast<void>(implementation_->range(parameter));
  implementation_->gradients().add(parameter, gradient);
}

void EmbeddedTrainer::add_device_gradient(std::uint32_t parameter, const DeviceGradient& gradient) {
  static_cast<void>(implementation_->range(parameter));
  implementation_->gradients().add_from_device(parameter, gradient);
}

bool EmbeddedTrainer::reads_gradient(std::uint32_t parameter) const {
  static_cast<void>(implementation_->range(parameter));
  return implementation_->gradients().reads(parameter);
}

void EmbeddedTrainer::discard_gradients() { implementation_->discard_gradients(); }

void EmbeddedTrainer::discard_gradient(std::uint32_t parameter) {
  implementation_->discard_gradient(parameter);
}

void EmbeddedTrainer::read_gradient(std::uint32_t parameter, std::span<float> sum) {
  implementation_->read_gradient(parameter, sum);
}

void EmbeddedTrainer::write_gradient(std::uint32_t parameter, std::span<const float> sum) {
  implementation_->write_gradient(parameter, sum);
}

void EmbeddedTrainer::reopen_gradients() { implementation_->reopen_gradients(); }

double EmbeddedTrainer::grad_norm(double gradient_divisor) {
  return implementation_->grad_norm(gradient_divisor);
}

std::span<const double> EmbeddedTrainer::leaf_sums() { return implementation_->leaf_sums(); }

EmbeddedResult EmbeddedTrainer::step(const EmbeddedStep& step) {
  return implementation_->step(step);
}

void EmbeddedTrainer::wait(std::uint32_t parameter) { implementation_->wait(parameter); }

void EmbeddedTrainer::wait() {
  for (std::uint32_t parameter = 0; parameter < size(); ++parameter) wait(parameter);
}

const cpu_adam::AdamOptions& EmbeddedTrainer::group(std::uint32_t group) const {
  implementation_->check_group(group);
  return implementation_->options().groups[group];
}

void EmbeddedTrainer::set_group(std::uint32_t group, const cpu_adam::AdamOptions& options) {
  implementation_->set_group(group, options);
}

std::uint64_t EmbeddedTrainer::steps() const { return implementation_->cycle().state().step; }

std::uint64_t EmbeddedTrainer::updates() const { return implementation_->cycle().state().updates; }

std::uint64_t EmbeddedTrainer::updates(std::uint32_t parameter) const {
  static_cast<void>(implementation_->range(parameter));
  return implementation_->cycle().updates()[parameter];
}

void EmbeddedTrainer::set_updates(std::uint32_t parameter, std::uint64_t updates) {
  implementation_->set_updates(parameter, updates);
}

void EmbeddedTrainer::set_updates(std::uint64_t updates) { implementation_->set_updates(updates); }

void EmbeddedTrainer::read_state(std::uint32_t parameter, std::span<float> master,
                                 std::span<float> m, std::span<float> v) {
  implementation_->read_state(parameter, {.master = master, .m = m, .v = v});
}

void EmbeddedTrainer::write_state(std::uint32_t parameter, std::span<const float> master,
                                  std::span<const float> m, std::span<const float> v) {
  implementation_->write_state(parameter, {.master = master, .m = m, .v = v});
}

void EmbeddedTrainer::save(const std::filesystem::path& directory) {
  implementation_->save(directory);
}

void EmbeddedTrainer::load(const std::filesystem::path& directory) {
  implementation_->load(directory);
}

std::vector<plan::MemoryItem> EmbeddedTrainer::memory() const { return implementation_->memory(); }

EmbeddedUse EmbeddedTrainer::use() const { return implementation_->cycle().record().use(); }

void EmbeddedTrainer::write_trace(const std::filesystem::path& path) const {
  implementation_->cycle().record().write_trace(path);
}

}  // namespace spillway::engine
