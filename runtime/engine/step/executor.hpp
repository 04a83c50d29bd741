// Executor: runs a StepPlan. One control thread issues every op whose dependencies allow it, polls
// events and tickets, and sleeps only when nothing can be issued and something is in flight: until
// it is woken, or, where the backend's events do not wake, for a moment.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/device_communicator.hpp"
#include "offload/device_backend.hpp"
#include "runtime/base/ticket.hpp"
#include "runtime/base/wake_signal.hpp"
#include "runtime/engine/step/step_result.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/step_plan.hpp"

namespace spillway::engine {

/// What each op does. Called by the executor, on the control thread, once an op may start.
class OpPerformer {
 public:
  virtual ~OpPerformer() = default;
  /// Prepares for the ops of `plan`, which follow.
  virtual void begin(const plan::StepPlan& plan) = 0;
  /// Whether the op is complete without doing anything, such as one of an update that is not
  /// pending.
  [[nodiscard]] virtual bool skips(const plan::Op& op) const = 0;
  /// Puts the op's work on its stream (lanes gpu, h2d, d2h, and net on a GPU). Does not block.
  virtual void enqueue(const plan::Op& op, offload::Stream& stream) = 0;
  /// Starts the op on its workers (lanes cpu, nvme_read, nvme_write, else net). Does not block.
  [[nodiscard]] virtual Ticket start(const plan::Op& op) = 0;
};

/// Ops issued and not complete, per lane. Streams are fed ahead so that they never run dry between
/// two polls; tickets are bounded by the pools of their services.
inline constexpr std::size_t kInFlight = 8;
/// Forward, backward and loss ops issued and not complete. Each launches tens of kernels, and a
/// launch blocks the control thread while a stream of CUDA has about a thousand pending. They take
/// no memory of their own: what a pass uses is a buffer that the plan gives it.
inline constexpr std::size_t kPassesInFlight = 6;

/// The streams of a device and a ring of events for each, shared by all plans of a run.
struct Streams {
  /// Makes the streams and their events. `job`: this rank's end of all ranks on GPUs, whose
  /// exchanges are on a stream; it outlives this. Null: exchanges are tickets.
  explicit Streams(offload::DeviceBackend& backend, comm::DeviceCommunicator* job = nullptr);
  /// Whether the lane is a stream.
  [[nodiscard]] bool has(plan::Lane lane) const;
  [[nodiscard]] offload::Stream& of(plan::Lane lane);
  /// Returns the event of an op, the lane's `issued`-th. Events are reused every kInFlight ops of a
  /// lane; a wait refers to the last record before it.
  [[nodiscard]] offload::Event& event(plan::Lane lane, std::uint64_t issued);
  /// Polls exchanges on streams: true if none is under way; throws if another rank has failed. Call
  /// it while waiting.
  [[nodiscard]] bool poll_exchanges();

  std::unique_ptr<offload::Stream> compute, upload, download;
  std::unique_ptr<offload::Stream> net;  ///< null where what ranks exchange is tickets
  comm::DeviceCommunicator* const gpu_job;
  const bool events_wake;  ///< the backend's do; else they are asked about every so often

 private:
  std::array<std::array<std::unique_ptr<offload::Event>, kInFlight>, 4> events_;
};

/// One plan, ready to run any number of times without allocating.
class Executor {
 public:
  /// Prepares the plan to run. `streams` and `wake` outlive this object.
  Executor(plan::StepPlan plan, Streams& streams, WakeSignal& wake);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Runs every op; returns when all are complete. If one fails, waits for all work in flight and
  /// rethrows the failure.
  void run(OpPerformer& performer);
  /// Runs a plan whose ops are all of one stream, and waits for the stream. For measurements: its
  /// time includes no poll and no event.
  void run_on_stream(OpPerformer& performer, plan::Lane lane);

  [[nodiscard]] const plan::StepPlan& plan() const { return plan_; }
  /// Timings of the last run, by op; start and end are 0 for a skipped op. Ops of one lane do not
  /// overlap.
  [[nodiscard]] std::span<const plan::OpTiming> timings() const { return timings_; }
  [[nodiscard]] Exposed exposed() const;
  /// Returns the seconds of the last run in which the lane worked.
  [[nodiscard]] double busy(plan::Lane lane) const;
  [[nodiscard]] double seconds() const { return seconds_; }

 private:
  enum class OpState : std::uint8_t { waiting, issued, complete };
  struct LaneQueue {
    std::vector<plan::OpIndex> ops;
    std::size_t next = 0;                  // into ops: first not issued
    std::vector<plan::OpIndex> in_flight;  // in issue order
    std::uint64_t issued = 0;
    double last_end = 0;
  };

  void reset();
  void sleep();
  bool advance(OpPerformer& performer);
  bool issue(plan::Lane lane, OpPerformer& performer);
  bool collect(plan::Lane lane);
  void complete(LaneQueue& lane, plan::OpIndex op);
  void drain() noexcept;
  [[nodiscard]] bool has_room(const LaneQueue& lane, const plan::Op& op) const;
  [[nodiscard]] bool may_start(const plan::Op& op) const;
  [[nodiscard]] offload::Event& event_of(plan::OpIndex op) {
    return streams_.event(plan_.ops[op].lane, events_[op]);
  }
  [[nodiscard]] double now() const;

  const plan::StepPlan plan_;
  Streams& streams_;
  WakeSignal& wake_;
  std::array<LaneQueue, plan::kLaneCount> lanes_;
  std::vector<std::uint64_t> events_;  // by op: how many its lane had issued before it
  std::vector<Ticket> tickets_;        // by op
  std::vector<std::string> names_;     // by op, for profilers
  std::vector<std::uint64_t> ranges_;  // by op, of those on ticket lanes
  std::vector<OpState> states_;
  std::vector<plan::OpTiming> timings_;
  std::size_t completed_ = 0;
  std::chrono::steady_clock::time_point begin_;
  double seconds_ = 0;
};

}  // namespace spillway::engine
