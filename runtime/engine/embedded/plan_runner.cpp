#include "runtime/engine/embedded/plan_runner.hpp"

namespace spillway::engine {

PlanRunner::PlanRunner(EmbeddedCycle& cycle, PassGate& gate)
    : cycle_(cycle), gate_(gate), thread_([this] { run(); }) {}

PlanRunner::~PlanRunner() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

PlanRunner::Phase PlanRunner::phase() const {
  const std::lock_guard lock(mutex_);
  return phase_;
}

void PlanRunner::check_sound() const {
  const std::lock_guard lock(mutex_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

/// Waits for the end of what the control thread does.
void PlanRunner::await(std::unique_lock<std::mutex>& lock, Phase over) {
  changed_.wait(lock, [&] { return phase_ != over; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void PlanRunner::start() {
  check_sound();
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::running) return;
    gate_.close(cycle_.wake());
    phase_ = Phase::running;
  }
  changed_.notify_all();
}

void PlanRunner::gather() {
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::running) gate_.complete_all();
  await(lock, Phase::running);
}

void PlanRunner::park() {
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::running) {
    parks_ = true;
    gate_.complete_all();
  }
  await(lock, Phase::running);
  phase_ = Phase::parked;
}

void PlanRunner::apply() {
  std::unique_lock lock(mutex_);
  phase_ = Phase::applying;
  changed_.notify_all();
  await(lock, Phase::applying);
}

/// Runs the plans that the phase asks for.
void PlanRunner::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock,
                  [&] { return stops_ || phase_ == Phase::running || phase_ == Phase::applying; });
    if (phase_ != Phase::running && phase_ != Phase::applying) return;
    const bool applies = phase_ == Phase::applying;
    lock.unlock();
    std::exception_ptr failure;
    try {
      applies ? cycle_.apply() : cycle_.run_step();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = failure;
    phase_ = failure != nullptr  ? Phase::failed
             : applies || parks_ ? Phase::parked
                                 : Phase::gathered;
    parks_ = false;
    if (failure != nullptr) gate_.release();
    changed_.notify_all();
  }
}

}  // namespace spillway::engine
