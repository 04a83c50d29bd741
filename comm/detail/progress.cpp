#include "comm/detail/progress.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

#include "comm/detail/collectives.hpp"
#include "comm/detail/transfers.hpp"
#include "comm/detail/transport.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/thread.hpp"

namespace spillway::comm::detail {
namespace {

/// So often a rank that is at work says so; several times while another one would wait for it.
constexpr std::chrono::milliseconds kWorkInterval{5000};

}  // namespace

Progress::Progress(const Communicator::MakeTransport& make, const CommunicatorOptions& options)
    : options_(options),
      ring_(std::bit_ceil(std::max<std::size_t>(options.depth, 1))),
      thread_(start_thread("comm", [this, &make] { run(make); })) {
  Lock lock(mutex_);
  while (transfers_ == nullptr && failure_ == nullptr) finished_changed_.wait(lock);
  if (transfers_ != nullptr) return;
  const std::exception_ptr failure = failure_;
  lock.unlock();
  thread_.join();
  std::rethrow_exception(failure);
}

Progress::~Progress() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  submitted_changed_.notify_one();
  thread_.join();
}

Collectives& Progress::add_subgroup(const Members& of, std::span<const Rank> some) {
  const Lock lock(mutex_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  return *groups_.emplace_back(
      std::make_unique<Collectives>(*transfers_, of.subgroup(some), options_));
}

Ticket Progress::submit(Collectives& group, const Call& call) {
  Lock lock(mutex_);
  while (submitted_ - finished_ >= ring_.size()) finished_changed_.wait(lock);
  const std::uint32_t number = submitted_++;
  ring_[number % ring_.size()] = {&group, call};
  if (failure_ != nullptr) finished_ = submitted_;
  lock.unlock();
  submitted_changed_.notify_one();
  return {*this, number};
}

void Progress::wake_with(WakeSignal* wake) {
  const Lock lock(mutex_);
  wake_ = wake;
}

void Progress::abandon(std::string_view reason) noexcept {
  Lock lock(mutex_);
  if (failure_ != nullptr || abandoned_) return;
  abandoned_ = true;
  try {
    reason_ = reason;
  } catch (...) {  // without memory the others do without the reason
  }
  transfers_->stop();
  submitted_changed_.notify_one();
  while (failure_ == nullptr) finished_changed_.wait(lock);
}

void Progress::begin_work() {
  {
    const Lock lock(mutex_);
    ++works_;
  }
  submitted_changed_.notify_one();
}

void Progress::end_work() {
  const Lock lock(mutex_);
  --works_;
}

bool Progress::ready(std::uint32_t number) {
  const Lock lock(mutex_);
  return is_finished(number);
}

void Progress::finish(std::uint32_t number) {
  Lock lock(mutex_);
  while (!is_finished(number)) finished_changed_.wait(lock);
  if (failure_ == nullptr || static_cast<std::int32_t>(number - failed_) < 0) return;
  const std::exception_ptr failure = failure_;
  lock.unlock();
  std::rethrow_exception(failure);
}

bool Progress::is_finished(std::uint32_t number) const {
  return static_cast<std::int32_t>(finished_ - number) > 0;
}

bool Progress::is_wanted() const { return stopping_ || abandoned_ || submitted_ != finished_; }

void Progress::run(const Communicator::MakeTransport& make) {
  ::pthread_setname_np(::pthread_self(), "comm");
  try {
    const std::unique_ptr<Transport> transport = make();
    Transfers transfers(*transport, std::chrono::milliseconds{options_.timeout_ms});
    {
      const Lock lock(mutex_);
      groups_.push_back(std::make_unique<Collectives>(
          transfers, Members(transport->rank(), transport->ranks()), options_));
      transfers_ = &transfers;
    }
    finished_changed_.notify_all();
    try {
      run_calls(*transport);
    } catch (const Error& error) {
      give_up(*transport, error.code(), error.what());
    } catch (const std::exception& error) {
      give_up(*transport, ErrorCode::internal, error.what());
    }
  } catch (...) {  // of `make`
    end(std::current_exception());
  }
}

void Progress::run_calls(Transport& transport) {
  Entry entry;
  while (next(transport, entry)) {
    entry.group->run(entry.call);
    {
      const Lock lock(mutex_);
      ++finished_;
      if (wake_ != nullptr) wake_->notify();
    }
    finished_changed_.notify_all();
  }
}

bool Progress::next(Transport& transport, Entry& entry) {
  Lock lock(mutex_);
  const auto often = std::min(kWorkInterval, std::chrono::milliseconds{options_.timeout_ms} / 4);
  while (!is_wanted()) {
    if (works_ == 0) {
      submitted_changed_.wait(lock);
      continue;
    }
    const auto due = std::chrono::steady_clock::now() + often;
    bool late = false;
    while (!is_wanted() && !late) late = submitted_changed_.wait_until(lock, due);
    if (is_wanted() || works_ == 0) continue;
    lock.unlock();
    transport.tell_at_work();
    lock.lock();
  }
  check(!abandoned_, ErrorCode::device_error, reason_);
  if (submitted_ == finished_) return false;
  entry = ring_[finished_ % ring_.size()];
  return true;
}

void Progress::give_up(Transport& transport, ErrorCode code, std::string_view reason) {
  std::exception_ptr failure = std::current_exception();
  {
    const Lock lock(mutex_);
    if (abandoned_) {
      code = ErrorCode::device_error;
      reason = reason_;  // which nobody changes any more
      failure = std::make_exception_ptr(
          Error(code, fmt::format("this rank has abandoned the group: {}", reason_)));
    }
  }
  transport.abandon(code, reason);
  end(std::move(failure));
}

void Progress::end(std::exception_ptr failure) {
  {
    const Lock lock(mutex_);
    failure_ = std::move(failure);
    failed_ = finished_;
    finished_ = submitted_;
    if (wake_ != nullptr) wake_->notify();
  }
  finished_changed_.notify_all();
}

}  // namespace spillway::comm::detail
