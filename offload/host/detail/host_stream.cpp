#include "offload/host/detail/host_stream.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "runtime/base/fine_timer.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/thread.hpp"

namespace spillway::offload::host {
namespace {

HostEvent& host_event(Event& event) {
  auto* const own = dynamic_cast<HostEvent*>(&event);
  SPILLWAY_ASSERT(own != nullptr);  // an event of another backend
  return *own;
}

void name_this_thread(const std::string& name) {
  // The kernel keeps 15 characters. A thread without its name still works.
  ::pthread_setname_np(::pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace

HostStream::HostStream(std::string_view name, const StreamSurroundings& surroundings)
    : name_(name),
      surroundings_(surroundings),
      ring_(std::make_unique<Entry[]>(surroundings.depth)),
      worker_(start_thread(name, [this] { work(); })) {}

HostStream::~HostStream() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  work_available_.notify_one();
  worker_.join();
  const std::exception_ptr failure = surroundings_.progress.unreported_failure();
  if (failure == nullptr) return;
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    log_error("stream {} was destroyed with an unreported failure: {}", name_, error.what());
  } catch (...) {
    log_error("stream {} was destroyed with an unreported failure", name_);
  }
}

HostStream::Entry& HostStream::next_slot() {
  const std::uint64_t last = submitted_.load(std::memory_order_relaxed);
  // Slot of entry n is free once entry n - depth is complete.
  if (last >= surroundings_.depth) {
    surroundings_.progress.wait_regardless(last + 1 - surroundings_.depth);
  }
  return ring_[(last + 1) % surroundings_.depth];
}

void HostStream::publish() {
  {
    const Lock lock(mutex_);
    submitted_.store(submitted_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  work_available_.notify_one();
}

void HostStream::enqueue_copy(std::byte* target, const std::byte* source, std::size_t bytes,
                              LinkThrottle* link) {
  Entry& entry = next_slot();
  entry.kind = EntryKind::copy;
  entry.copy = {.target = target, .source = source, .bytes = bytes, .link = link, .submitted = {}};
  if (link != nullptr) entry.copy.submitted = LinkThrottle::Clock::now();
  publish();
}

void HostStream::upload(DeviceSpan<std::byte> target, std::span<const std::byte> source) {
  SPILLWAY_ASSERT(target.size_bytes() == source.size_bytes());
  enqueue_copy(target.address(), source.data(), source.size_bytes(), surroundings_.upload_link);
}

void HostStream::download(std::span<std::byte> target, DeviceSpan<const std::byte> source) {
  SPILLWAY_ASSERT(target.size_bytes() == source.size_bytes());
  enqueue_copy(target.data(), source.address(), source.size_bytes(), surroundings_.download_link);
}

void HostStream::submit(InlineTask task) {
  SPILLWAY_ASSERT(static_cast<bool>(task));
  Entry& entry = next_slot();
  entry.kind = EntryKind::task;
  entry.task = task;
  publish();
}

void HostStream::record(Event& event) {
  HostEvent& own = host_event(event);
  next_slot().kind = EntryKind::record;
  own.progress_ = &surroundings_.progress;
  own.position_ = submitted_.load(std::memory_order_relaxed) + 1;
  publish();
}

void HostStream::wait(Event& event) {
  const HostEvent& own = host_event(event);
  // Never recorded, or recorded on this very stream, which is in order anyway.
  if (own.progress_ == nullptr || own.progress_ == &surroundings_.progress) return;
  Entry& entry = next_slot();
  entry.kind = EntryKind::wait;
  entry.awaited = {.progress = own.progress_, .position = own.position_};
  publish();
}

void HostStream::synchronize() {
  surroundings_.progress.wait_until(submitted_.load(std::memory_order_relaxed));
}

bool HostStream::wait_for_entry(std::uint64_t position) {
  if (submitted_.load(std::memory_order_acquire) >= position) return true;
  Lock lock(mutex_);
  while (!stopping_ && submitted_.load(std::memory_order_relaxed) < position) {
    work_available_.wait(lock);
  }
  return submitted_.load(std::memory_order_relaxed) >= position;
}

void HostStream::work() {
  name_this_thread(name_);
  const FineTimer on_time;  // else every throttled copy would end late
  bool failed = false;
  for (std::uint64_t position = 1; wait_for_entry(position); ++position) {
    Entry& entry = ring_[position % surroundings_.depth];
    // Read before `advance`, which gives the slot back to the control thread.
    const bool recorded = entry.kind == EntryKind::record;
    std::exception_ptr failure;
    if (!failed) {
      try {
        run(entry);
      } catch (...) {
        failure = std::current_exception();
        failed = true;
      }
    }
    surroundings_.progress.advance(std::move(failure));
    if (recorded && surroundings_.wake != nullptr) surroundings_.wake->notify();
  }
}

void HostStream::run(Entry& entry) {
  switch (entry.kind) {
    case EntryKind::copy: return run_copy(entry.copy);
    case EntryKind::record: return;
    case EntryKind::task: entry.task(); break;
    case EntryKind::wait:
      if (entry.awaited.progress->reached(entry.awaited.position)) return;
      entry.awaited.progress->wait_until(entry.awaited.position);
      break;
  }
  // What follows could not have started earlier over an ideal link either.
  if (surroundings_.upload_link != nullptr) ideal_now_ = LinkThrottle::Clock::now();
}

void HostStream::run_copy(const Copy& copy) {
  if (copy.bytes == 0) return;
  if (copy.link == nullptr) {
    std::memcpy(copy.target, copy.source, copy.bytes);
    return;
  }
  ideal_now_ = copy.link->reserve(std::max(ideal_now_, copy.submitted), copy.bytes);
  std::memcpy(copy.target, copy.source, copy.bytes);
  std::this_thread::sleep_until(ideal_now_);
}

}  // namespace spillway::offload::host
