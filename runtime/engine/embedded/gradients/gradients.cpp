#include "runtime/engine/embedded/gradients/gradients.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cpu_adam/adam.hpp"
#include "cpu_adam/gradient_norm.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/thread.hpp"
#include "runtime/engine/step/written_values.hpp"

namespace spillway::engine {

using Phase = PlanRunner::Phase;

namespace {

/// How often copies are asked about: short beside any that is worth its call.
constexpr std::chrono::microseconds kPollInterval{50};

}  // namespace

EmbeddedGradients::EmbeddedGradients(const EmbeddedOptions& options, const EmbeddedLayout& layout,
                                     const GradientUsers& users)
    : options_(options),
      layout_(layout),
      users_(users),
      alone_(!sums_gradients(options)),
      sources_(layout.ranges.size()),
      on_the_way_(layout.ranges.size()) {
  if (options.device == config::DeviceKind::host) return;
  queue_.resize(layout.ranges.size());
  offload::DeviceBackend& backend = users.values.backend();
  for (OnTheWay& each : on_the_way_) each.ready = backend.make_event();
  copies_.emplace(backend, landing_bytes(options, layout));
  thread_ = start_thread("gradients", [this] { bring(); });
}

EmbeddedGradients::~EmbeddedGradients() {
  if (!thread_.joinable()) return;
  {
    const Lock lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void EmbeddedGradients::check_sound() const {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void EmbeddedGradients::check_size(std::uint32_t parameter, std::size_t bytes) const {
  const std::uint64_t elements = layout_.ranges[parameter].count;
  const std::size_t wanted = elements * size_of(options_.dtype);
  check(bytes == wanted, ErrorCode::invalid_argument,
        fmt::format("the gradient of \"{}\" has {} bytes; {} elements of {} have {}",
                    layout_.names[parameter], bytes, elements, name_of(options_.dtype), wanted));
}

void EmbeddedGradients::add(std::uint32_t parameter, std::span<const std::byte> gradient) {
  check_size(parameter, gradient.size());
  {
    Lock lock(mutex_);
    await_last(lock, parameter);  // sums have the order in which gradients are added
  }
  const Turn turn = receive(parameter);
  await_memory(parameter);
  store(parameter, turn, 0, gradient);
  note_landed(parameter);
}

void EmbeddedGradients::add_from_device(std::uint32_t parameter, const DeviceGradient& gradient) {
  check_size(parameter, gradient.values.size());
  check(copies_.has_value(), ErrorCode::invalid_argument,
        fmt::format("the gradient of \"{}\" is said to be in the memory of a GPU, and the "
                    "trainer's device is the host; make it for cuda, or pass host memory",
                    layout_.names[parameter]));
  offload::SharedDevice& device = *users_.values.shared();
  device.check_memory(gradient.values);
  const Bytes bytes{gradient.values.size()};
  {
    Lock lock(mutex_);
    await_last(lock, parameter);
  }
  OnTheWay& next = on_the_way_[parameter];
  next.waits = gradient.ready.kind != offload::ExternalWork::Kind::none;
  if (next.waits) device.record_behind(gradient.ready, *next.ready);
  next.turn = receive(parameter);
  next.begun = 0;
  {
    Lock lock(mutex_);
    await_room(lock, bytes);
    sources_[parameter] = gradient.values;
    waiting_ += bytes;
    queue_[(oldest_ + queued_++) % queue_.size()] = parameter;
  }
  changed_.notify_all();
}

/// Returns once no gradient of the parameter is on its way.
void EmbeddedGradients::await_last(Lock& lock, std::uint32_t parameter) {
  while (failure_ == nullptr && !sources_[parameter].empty()) changed_.wait(lock);
  check_sound();
}

/// Returns once `gradient_memory` has room, which lasts until the lock is released.
void EmbeddedGradients::await_room(Lock& lock, Bytes bytes) {
  while (failure_ == nullptr && !has_room(bytes)) changed_.wait(lock);
  check_sound();
}

bool EmbeddedGradients::has_room(Bytes bytes) const {
  const std::optional<Bytes>& most = options_.gradient_memory;
  return !most || waiting_ == Bytes{} || waiting_ + bytes <= *most;
}

bool EmbeddedGradients::reads(std::uint32_t parameter) const {
  const Lock lock(mutex_);
  check_sound();
  return !sources_[parameter].empty();
}

/// Takes a gradient of a parameter. The first of all starts the plan of the step, unless parameters
/// are streamed.
EmbeddedGradients::Turn EmbeddedGradients::receive(std::uint32_t parameter) {
  const Lock lock(mutex_);
  PlanRunner& runner = users_.runner;
  check(runner.phase() != Phase::gathered, ErrorCode::invalid_argument,
        fmt::format("a gradient of \"{}\" comes after grad_norm; call step or discard_gradients "
                    "first",
                    layout_.names[parameter]));
  users_.counts.check_room(parameter);
  // A unit's forward may wait for those of others, which nobody enters.
  const std::uint32_t block = layout_.ranges[parameter].block;
  const std::optional<std::uint64_t> update = runner.update();
  check(!layout_.is_streamed(block) || !update || users_.gate.has_begun_forward(block, *update),
        ErrorCode::invalid_argument,
        fmt::format("a gradient of \"{}\" comes ahead of its update; enter its unit first",
                    layout_.names[parameter]));
  // Streamed parameters have the backward pass that `enter` started.
  if (!layout_.streams()) runner.start(gathering_plan(layout_.workload));
  return users_.counts.take(parameter);
}

/// Returns once no update reads the gradient of the step before. Where parameters are streamed, an
/// update runs beside a forward pass, which a block begins once its own is over.
void EmbeddedGradients::await_memory(std::uint32_t parameter) {
  const std::uint32_t block = layout_.ranges[parameter].block;
  const bool streams = layout_.streams();
  const std::optional<std::uint64_t> update = users_.runner.update();
  if (streams && !update) return;
  const bool begun = streams ? users_.gate.wait_for_forward(block, *update)
                             : users_.gate.wait_for_backward(block, users_.runner.number());
  if (!begun) users_.runner.check_sound();
}

/// Stores a part of a gradient, or adds it; `first`: its range in the gradient's bytes.
void EmbeddedGradients::store(std::uint32_t parameter, Turn turn, std::uint64_t first,
                              std::span<const std::byte> bytes) {
  const std::span<std::byte> target = users_.values.gradient(layout_.ranges[parameter]);
  if (alone_) {
    std::ranges::copy(bytes, target.begin() + static_cast<std::ptrdiff_t>(first));
    return;
  }
  const std::size_t size = size_of(options_.dtype);
  auto* sums = reinterpret_cast<float*>(target.data()) + first / size;
  cpu_adam::accumulate(cpu_adam::isa_or_best(options_.isa), options_.dtype, bytes.data(),
                       {sums, bytes.size() / size}, turn == Turn::first);
}

/// Notes that a gradient of the parameter has come to host memory. The last of its block ends the
/// block's backward; a unit's pass is over when the framework leaves it.
void EmbeddedGradients::note_landed(std::uint32_t parameter) {
  const bool completes = users_.counts.land(parameter);
  if (completes && !layout_.streams()) users_.gate.complete(layout_.ranges[parameter].block);
}

void EmbeddedGradients::land() {
  Lock lock(mutex_);
  while (failure_ == nullptr && waiting_ != Bytes{}) changed_.wait(lock);
  check_sound();
}

void EmbeddedGradients::fill_missing() {
  for (std::uint32_t parameter = 0; parameter < layout_.ranges.size(); ++parameter) {
    if (users_.counts.any(parameter)) continue;
    await_memory(parameter);
    std::ranges::fill(users_.values.gradient(layout_.ranges[parameter]), std::byte{});
  }
}

void EmbeddedGradients::read(std::uint32_t parameter, std::span<float> sum) const {
  if (!users_.counts.any(parameter)) {
    std::ranges::fill(sum, 0.0F);
    return;
  }
  read_last(parameter, sum);
}

void EmbeddedGradients::read_last(std::uint32_t parameter, std::span<float> sum) const {
  widen(plan::waiting_gradient_dtype(layout_.workload),
        users_.values.gradient(layout_.ranges[parameter]), sum);
}

void EmbeddedGradients::write(std::uint32_t parameter, std::span<const float> sum) {
  check(users_.counts.any(parameter), ErrorCode::invalid_argument,
        fmt::format("\"{}\" has no gradient in this step that could be replaced: hand one over",
                    layout_.names[parameter]));
  cpu_adam::round_gradient(cpu_adam::isa_or_best(options_.isa),
                           plan::waiting_gradient_dtype(layout_.workload), sum.data(),
                           users_.values.gradient(layout_.ranges[parameter]).data(), sum.size());
}

/// The body of the thread. Every later call throws what fails here.
void EmbeddedGradients::bring() noexcept {
  try {
    users_.values.shared()->bind_thread();
    bring_all();
  } catch (...) {
    const Lock lock(mutex_);
    failure_ = std::current_exception();
  }
  changed_.notify_all();
}

void EmbeddedGradients::bring_all() {
  for (;;) {
    bool begins = false;
    {
      Lock lock(mutex_);
      while (!stops_ && queued_ == 0 && copies_->empty()) changed_.wait(lock);
      if (stops_) return;
      begins = queued_ > 0 && copies_->has_room();
    }
    if (begins) {
      begin_next();
    } else if (const auto copy = copies_->take_landed()) {
      finish(*copy);
    } else {
      std::this_thread::sleep_for(kPollInterval);
    }
  }
}

/// Begins a copy of the gradient that waits for longest: of all of it, or of as much as can land.
void EmbeddedGradients::begin_next() {
  std::uint32_t parameter = 0;
  Source source;
  {
    const Lock lock(mutex_);
    parameter = queue_[oldest_];
    source = sources_[parameter];
  }
  OnTheWay& next = on_the_way_[parameter];
  GradientCopy copy{.parameter = parameter, .first = next.begun};
  if (next.begun == 0) {
    await_memory(parameter);
    if (next.waits) copies_->order_behind(*next.ready);
  }
  copy.target = alone_ ? users_.values.gradient(layout_.ranges[parameter]) : copies_->landing();
  const std::size_t left = source.size() - next.begun;
  copy.target = copy.target.first(std::min(copy.target.size(), left));
  copy.ends = copy.target.size() == left;
  copies_->begin(copy, source.subspan(next.begun, copy.target.size()));
  next.begun += copy.target.size();
  if (!copy.ends) return;
  const Lock lock(mutex_);
  oldest_ = (oldest_ + 1) % queue_.size();
  --queued_;
}

void EmbeddedGradients::finish(const GradientCopy& copy) {
  OnTheWay& way = on_the_way_[copy.parameter];
  if (!alone_) store(copy.parameter, way.turn, copy.first, copy.target);
  users_.record.note_download(layout_.ranges[copy.parameter].block, Bytes{copy.target.size()},
                              copy.duration);
  if (!copy.ends) return;
  note_landed(copy.parameter);
  {
    const Lock lock(mutex_);
    waiting_ -= Bytes{sources_[copy.parameter].size()};
    sources_[copy.parameter] = {};
  }
  changed_.notify_all();
}

}  // namespace spillway::engine
