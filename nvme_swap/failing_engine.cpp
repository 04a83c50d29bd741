#include "nvme_swap/failing_engine.hpp"

#include <algorithm>
#include <utility>

#include "nvme_swap/detail/held_results.hpp"
#include "runtime/base/error.hpp"

namespace spillway::nvme_swap {

FailingEngine::FailingEngine(std::unique_ptr<IoEngine> inner, const EngineOptions& options)
    : inner_(std::move(inner)),
      wake_(options.wake),
      depth_(options.queue_depth),
      scratch_(options.queue_depth),
      held_(std::make_unique<detail::HeldResults>(options.queue_depth, options.wake)) {
  overtaken_.reserve(depth_);
  delayed_.reserve(depth_);
  invented_.reserve(depth_);
}

FailingEngine::~FailingEngine() {
  // What was taken is done, as with every engine.
  while (!overtaken_.empty()) release_overtaken();
}

void FailingEngine::arm(const Fault& fault) {
  fault_ = fault;
  matched_ = 0;
}

void FailingEngine::disarm() { fault_.reset(); }

std::uint64_t FailingEngine::taken(std::optional<IoOperation> operation) const {
  if (operation) return taken_[static_cast<std::size_t>(*operation)];
  return taken_[0] + taken_[1] + taken_[2];
}

std::string_view FailingEngine::name() const { return inner_->name(); }

std::size_t FailingEngine::submit(std::span<const IoRequest> requests) {
  std::size_t count = 0;
  const std::size_t limit = std::min(requests.size(), depth_ - in_flight_);
  while (count < limit && submit_one(requests[count])) {
    ++taken_[static_cast<std::size_t>(requests[count].operation)];
    ++in_flight_;
    ++count;
  }
  return count;
}

std::size_t FailingEngine::poll(std::span<IoResult> results) {
  // The caller has nothing more to send for now: nothing will overtake these.
  release_overtaken();
  collect();
  std::size_t count = std::min(results.size(), invented_.size());
  std::copy_n(invented_.begin(), count, results.begin());
  invented_.erase(invented_.begin(), invented_.begin() + static_cast<std::ptrdiff_t>(count));
  count += held_->take_due(results.subspan(count));
  in_flight_ -= count;
  return count;
}

void FailingEngine::wait() {
  release_overtaken();
  collect();
  while (invented_.empty() && held_->empty() && in_flight_ > 0) {
    inner_->wait();
    collect();
  }
  if (invented_.empty() && !held_->empty()) held_->wait_for_first();
}

bool FailingEngine::strikes(IoOperation operation) const {
  if (!fault_ || (fault_->operation && *fault_->operation != operation)) return false;
  const std::uint64_t number = matched_ + 1;
  return number >= fault_->first && number - fault_->first < fault_->count;
}

bool FailingEngine::submit_one(const IoRequest& request) {
  const bool struck = strikes(request.operation);
  const bool accepted = struck ? spoil(request) : inner_->submit({&request, 1}) == 1;
  if (!accepted) return false;
  if (!struck) release_overtaken();
  if (fault_ && (!fault_->operation || *fault_->operation == request.operation)) ++matched_;
  if (struck) ++spoiled_;
  return true;
}

bool FailingEngine::spoil(const IoRequest& request) {
  IoRequest changed = request;
  switch (fault_->action) {
    case FaultAction::fail: invent(request.tag, -std::int64_t{fault_->error}); return true;
    case FaultAction::zero: invent(request.tag, 0); return true;
    case FaultAction::lose:
      invent(request.tag, static_cast<std::int64_t>(request.length));
      return true;
    case FaultAction::shorten:
      changed.length = std::min(request.length, fault_->length);
      return inner_->submit({&changed, 1}) == 1;
    case FaultAction::delay:
      if (inner_->submit({&changed, 1}) != 1) return false;
      delayed_.push_back({.tag = request.tag, .delay = fault_->delay});
      return true;
    case FaultAction::reorder: overtaken_.push_back(request); return true;
  }
  return false;
}

void FailingEngine::release_overtaken() {
  // The engine's queue is as long as ours, so it has room; if not now, then at the next call.
  const std::size_t taken = overtaken_.empty() ? 0 : inner_->submit(overtaken_);
  overtaken_.erase(overtaken_.begin(), overtaken_.begin() + static_cast<std::ptrdiff_t>(taken));
}

void FailingEngine::invent(std::uint64_t tag, std::int64_t result) {
  invented_.push_back({.tag = tag, .result = result});
  if (wake_ != nullptr) wake_->notify();
}

/// Takes what the engine has finished and sorts it into results for now and for later.
void FailingEngine::collect() {
  const std::size_t room = invented_.capacity() - invented_.size();
  const std::size_t count = inner_->poll(std::span(scratch_).first(room));
  for (std::size_t i = 0; i < count; ++i) {
    const auto delayed = std::find_if(delayed_.begin(), delayed_.end(), [&](const Delayed& other) {
      return other.tag == scratch_[i].tag;
    });
    if (delayed == delayed_.end()) {
      invented_.push_back(scratch_[i]);
    } else {
      held_->hold(scratch_[i], detail::HeldResults::Clock::now() + delayed->delay);
      delayed_.erase(delayed);
    }
  }
}

}  // namespace spillway::nvme_swap
