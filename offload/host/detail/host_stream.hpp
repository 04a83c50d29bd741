// HostStream and HostEvent: a stream is a fixed ring of entries and one worker thread that runs
// them in order; an event is a position in a stream.
//
// Threads: the control thread submits, records, waits and asks; the worker runs entries. Neither
// allocates, and an idle worker sleeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "offload/device_backend.hpp"
#include "offload/host/detail/link_throttle.hpp"
#include "offload/host/detail/stream_progress.hpp"
#include "runtime/base/mutex.hpp"
#include "runtime/base/wake_signal.hpp"

namespace spillway::offload::host {

class HostEvent final : public Event {
 public:
  [[nodiscard]] bool done() override {
    return progress_ == nullptr || progress_->reached(position_);
  }

 private:
  friend class HostStream;
  const StreamProgress* progress_ = nullptr;  ///< null until recorded; owned by the backend
  std::uint64_t position_ = 0;
};

/// What a stream borrows from its backend, which outlives it.
struct StreamSurroundings {
  StreamProgress& progress;   ///< this stream's own
  LinkThrottle* upload_link;  ///< null: as fast as memcpy
  LinkThrottle* download_link;
  WakeSignal* wake;  ///< may be null
  std::size_t depth;
};

class HostStream final : public Stream {
 public:
  HostStream(std::string_view name, const StreamSurroundings& surroundings);
  /// Completes what was submitted. Logs a failure that nobody has asked about.
  ~HostStream() override;
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  void upload(DeviceSpan<std::byte> target, std::span<const std::byte> source) override;
  void download(std::span<std::byte> target, DeviceSpan<const std::byte> source) override;
  void submit(InlineTask task) override;
  void record(Event& event) override;
  void wait(Event& event) override;
  void synchronize() override;

 private:
  struct Copy {
    std::byte* target;
    const std::byte* source;
    std::size_t bytes;
    LinkThrottle* link;
    LinkThrottle::Clock::time_point submitted;
  };
  struct Position {
    const StreamProgress* progress;
    std::uint64_t position;
  };
  enum class EntryKind : std::uint8_t { copy, task, record, wait };
  struct Entry {
    EntryKind kind = EntryKind::task;
    Copy copy{};
    Position awaited{};
    InlineTask task;
  };

  /// Returns the slot of the next entry, once there is one; `publish` hands it to the worker.
  Entry& next_slot();
  void publish();
  void enqueue_copy(std::byte* target, const std::byte* source, std::size_t bytes,
                    LinkThrottle* link);

  void work();
  [[nodiscard]] bool wait_for_entry(std::uint64_t position);
  void run(Entry& entry);
  void run_copy(const Copy& copy);

  const std::string name_;
  const StreamSurroundings surroundings_;
  const std::unique_ptr<Entry[]> ring_;  ///< entry n lives in slot n % depth until it is complete

  std::atomic<std::uint64_t> submitted_{0};
  // The worker's sleep. `submitted_` changes under the lock, so that no entry comes between the
  // worker's look at it and its wait.
  Mutex mutex_;
  Condition work_available_;
  bool stopping_ SPILLWAY_GUARDED_BY(mutex_) = false;

  // This is the worker's own: when, on an ideal machine, the entry before the current was over.
  LinkThrottle::Clock::time_point ideal_now_{};

  std::thread worker_;  ///< last, so that it starts when everything else is ready
};

}  // namespace spillway::offload::host
