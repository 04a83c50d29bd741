#include "runtime/engine/embedded/passes/plan_runner.hpp"

#include "runtime/base/thread.hpp"

namespace spillway::engine {

PlanRunner::PlanRunner(PlanLists& lists, PassGate& gate)
    : lists_(lists), gate_(gate), thread_(start_thread("plans", [this] { run(); })) {}

PlanRunner::~PlanRunner() {
  {
    const Lock lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

PlanRunner::Phase PlanRunner::phase() const {
  const Lock lock(mutex_);
  return phase_;
}

void PlanRunner::check_sound() const {
  const Lock lock(mutex_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

bool PlanRunner::runs(EmbeddedPlan plan) const {
  const Lock lock(mutex_);
  return phase_ == Phase::running && plan_ == plan;
}

std::uint64_t PlanRunner::number() const {
  const Lock lock(mutex_);
  return number_;
}

std::optional<std::uint64_t> PlanRunner::update() const {
  const Lock lock(mutex_);
  if (phase_ != Phase::running || plan_ != EmbeddedPlan::step || !updates_) return std::nullopt;
  return number_;
}

void PlanRunner::start(EmbeddedPlan plan) {
  check_sound();
  {
    const Lock lock(mutex_);
    if (phase_ == Phase::running) return;
    number_ = gate_.close(lists_.wake());
    phase_ = Phase::running;
    plan_ = plan;
    updates_ = lists_.has_pending();
  }
  changed_.notify_all();
}

void PlanRunner::finish() {
  Lock lock(mutex_);
  if (phase_ == Phase::running) gate_.complete_all();
  while (phase_ == Phase::running) changed_.wait(lock);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void PlanRunner::park() {
  finish();
  const Lock lock(mutex_);
  phase_ = Phase::parked;
}

/// Runs the plans that are started.
void PlanRunner::run() {
  Lock lock(mutex_);
  for (;;) {
    while (!stops_ && phase_ != Phase::running) changed_.wait(lock);
    if (phase_ != Phase::running) return;
    const EmbeddedPlan plan = plan_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      lists_.run(plan);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = failure;
    phase_ = failure != nullptr     ? Phase::failed
             : lists_.gathers(plan) ? Phase::gathered
                                    : Phase::parked;
    if (failure != nullptr) gate_.release();
    changed_.notify_all();
  }
}

}  // namespace spillway::engine
