#include "runtime/engine/step/executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "runtime/base/elapsed.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/fine_timer.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/profiler_range.hpp"

namespace spillway::engine {

using plan::Lane;
using plan::Op;
using plan::OpIndex;

namespace {

/// An upper bound on one sleep, should a wake-up ever be lost.
constexpr std::chrono::milliseconds kLongestSleep{50};

/// Polling interval for events that cannot wake the control thread: short beside any op that is
/// worth a lane, and long enough to leave the processor to the workers.
constexpr std::chrono::microseconds kPollInterval{50};

/// As in "forward 12.3": of block 12, micro-batch 3.
std::string profiler_name(const Op& op) {
  return fmt::format("{} {}.{}", plan::name_of(op), op.block, op.micro_batch);
}

/// Returns the number of a stream's ring of events.
std::size_t ring_of(Lane lane) { return lane == Lane::net ? 3 : static_cast<std::size_t>(lane); }

}  // namespace

Streams::Streams(offload::DeviceBackend& backend, comm::DeviceCommunicator* job)
    : compute(backend.make_stream("compute")),
      upload(backend.make_stream("h2d")),
      download(backend.make_stream("d2h")),
      // Others wait for what a rank sends, and its kernels are few: ahead of this rank's passes.
      net(job == nullptr ? nullptr : backend.make_stream("net", offload::Urgency::first)),
      gpu_job(job),
      events_wake(backend.capabilities().wakes) {
  for (const Lane lane : {Lane::gpu, Lane::h2d, Lane::d2h, Lane::net}) {
    if (!has(lane)) continue;
    for (auto& event : events_[ring_of(lane)]) event = backend.make_event();
  }
}

bool Streams::has(Lane lane) const {
  if (lane == Lane::net) return net != nullptr;
  return lane == Lane::gpu || lane == Lane::h2d || lane == Lane::d2h;
}

offload::Stream& Streams::of(Lane lane) {
  SPILLWAY_ASSERT(has(lane));
  if (lane == Lane::net) return *net;
  return lane == Lane::gpu ? *compute : lane == Lane::h2d ? *upload : *download;
}

offload::Event& Streams::event(Lane lane, std::uint64_t issued) {
  SPILLWAY_ASSERT(has(lane));
  return *events_[ring_of(lane)][issued % kInFlight];
}

bool Streams::poll_exchanges() { return gpu_job == nullptr || gpu_job->watch(); }

Executor::Executor(plan::StepPlan plan, Streams& streams, WakeSignal& wake)
    : plan_(std::move(plan)),
      streams_(streams),
      wake_(wake),
      events_(plan_.ops.size()),
      tickets_(plan_.ops.size()),
      ranges_(plan_.ops.size()),
      states_(plan_.ops.size()),
      timings_(plan_.ops.size()) {
  for (OpIndex op = 0; op < plan_.ops.size(); ++op) {
    const Lane lane = plan_.ops[op].lane;
    lanes_[static_cast<std::size_t>(lane)].ops.push_back(op);
    names_.push_back(profiler_name(plan_.ops[op]));
  }
  for (LaneQueue& lane : lanes_) lane.in_flight.reserve(std::max(kInFlight, lane.ops.size()));
}

double Executor::now() const { return seconds_since(begin_); }

void Executor::reset() {
  begin_ = std::chrono::steady_clock::now();
  std::fill(states_.begin(), states_.end(), OpState::waiting);
  std::fill(timings_.begin(), timings_.end(), plan::OpTiming{});
  for (LaneQueue& lane : lanes_) {
    lane.next = lane.issued = 0;
    lane.in_flight.clear();
    lane.last_end = 0;
  }
  completed_ = 0;
}

void Executor::run(OpPerformer& performer) {
  const FineTimer on_time;  // else each poll would be late by as much as the next one is away
  reset();
  performer.begin(plan_);
  try {
    while (completed_ < plan_.ops.size()) {
      if (!advance(performer)) sleep();
    }
  } catch (...) {
    drain();
    throw;
  }
  seconds_ = now();
}

void Executor::run_on_stream(OpPerformer& performer, Lane lane) {
  performer.begin(plan_);
  offload::Stream& stream = streams_.of(lane);
  for (const Op& op : plan_.ops) {
    SPILLWAY_ASSERT(op.lane == lane);
    performer.enqueue(op, stream);
  }
  stream.synchronize();
}

/// Workers wake this thread, whatever the backend does.
void Executor::sleep() {
  const bool waits_for_stream = std::ranges::any_of(lanes_, [&](const LaneQueue& lane) {
    return !lane.in_flight.empty() && streams_.has(plan_.ops[lane.in_flight.front()].lane);
  });
  wake_.wait_for(waits_for_stream && !streams_.events_wake ? kPollInterval : kLongestSleep);
}

bool Executor::advance(OpPerformer& performer) {
  bool progress = false;
  static_cast<void>(streams_.poll_exchanges());
  for (std::size_t lane = 0; lane < plan::kLaneCount; ++lane) {
    progress |= collect(static_cast<Lane>(lane));
  }
  for (std::size_t lane = 0; lane < plan::kLaneCount; ++lane) {
    progress |= issue(static_cast<Lane>(lane), performer);
  }
  return progress;
}

/// A stream orders itself behind work that is only issued; workers need it complete.
bool Executor::may_start(const Op& op) const {
  const auto dependencies = plan_.dependencies_of(op);
  return std::all_of(dependencies.begin(), dependencies.end(), [&](OpIndex dependency) {
    if (states_[dependency] == OpState::complete) return true;
    return streams_.has(op.lane) && streams_.has(plan_.ops[dependency].lane) &&
           states_[dependency] == OpState::issued;
  });
}

bool Executor::has_room(const LaneQueue& lane, const Op& op) const {
  if (op.lane == Lane::external) return true;
  if (lane.in_flight.size() >= kInFlight) return false;
  if (!is_model_op(op)) return true;
  const auto passes = std::ranges::count_if(
      lane.in_flight, [&](OpIndex index) { return is_model_op(plan_.ops[index]); });
  return static_cast<std::size_t>(passes) < kPassesInFlight;
}

bool Executor::issue(Lane name, OpPerformer& performer) {
  LaneQueue& lane = lanes_[static_cast<std::size_t>(name)];
  bool progress = false;
  while (lane.next < lane.ops.size()) {
    const OpIndex index = lane.ops[lane.next];
    const Op& op = plan_.ops[index];
    if (!has_room(lane, op)) break;
    if (performer.skips(op)) {
      states_[index] = OpState::complete;
      ++completed_;
    } else if (!may_start(op)) {
      break;
    } else {
      timings_[index].start = now();
      if (streams_.has(name)) {
        offload::Stream& stream = streams_.of(name);
        for (const OpIndex dependency : plan_.dependencies_of(op)) {
          const bool elsewhere = plan_.ops[dependency].lane != name;
          if (elsewhere && states_[dependency] == OpState::issued) {
            stream.wait(event_of(dependency));
          }
        }
        const ProfilerRange range(names_[index].c_str());
        performer.enqueue(op, stream);
        // Streams complete in order: the op that had this event before is complete.
        events_[index] = lane.issued++;
        stream.record(event_of(index));
      } else {
        ranges_[index] = start_profiler_range(names_[index].c_str());
        tickets_[index] = performer.start(op);
      }
      states_[index] = OpState::issued;
      lane.in_flight.push_back(index);
    }
    ++lane.next;
    progress = true;
  }
  return progress;
}

bool Executor::collect(Lane name) {
  LaneQueue& lane = lanes_[static_cast<std::size_t>(name)];
  const std::size_t before = lane.in_flight.size();
  for (std::size_t i = 0; i < lane.in_flight.size();) {
    const OpIndex index = lane.in_flight[i];
    const bool over = streams_.has(name) ? event_of(index).done() : tickets_[index].ready();
    if (over) {
      if (!streams_.has(name)) end_profiler_range(ranges_[index]);
      tickets_[index].wait();
      complete(lane, index);
      lane.in_flight.erase(lane.in_flight.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (streams_.has(name)) {
      break;  // a stream completes in order
    } else {
      ++i;
    }
  }
  return lane.in_flight.size() != before;
}

void Executor::complete(LaneQueue& lane, OpIndex op) {
  states_[op] = OpState::complete;
  ++completed_;
  plan::OpTiming& timing = timings_[op];
  timing.end = now();
  // An op that was issued ahead of time started when its lane and its dependencies were done.
  timing.start = std::max(timing.start, lane.last_end);
  for (const OpIndex dependency : plan_.dependencies_of(plan_.ops[op])) {
    timing.start = std::max(timing.start, timings_[dependency].end);
  }
  timing.start = std::min(timing.start, timing.end);
  lane.last_end = timing.end;
}

Exposed Executor::exposed() const {
  const std::vector<OpIndex>& gpu = lanes_[static_cast<std::size_t>(Lane::gpu)].ops;
  Exposed exposed{};
  for (std::size_t name = 0; name < exposed.size(); ++name) {
    if (static_cast<Lane>(name) == Lane::gpu) continue;
    std::size_t first = 0;  // the first gpu op that may still overlap
    for (const OpIndex op : lanes_[name].ops) {
      const auto [start, end] = timings_[op];
      double hidden = 0;
      while (first < gpu.size() && timings_[gpu[first]].end <= start) ++first;
      for (std::size_t g = first; g < gpu.size() && timings_[gpu[g]].start < end; ++g) {
        hidden += std::max(
            0.0, std::min(end, timings_[gpu[g]].end) - std::max(start, timings_[gpu[g]].start));
      }
      exposed[name] += end - start - hidden;
    }
  }
  return exposed;
}

double Executor::busy(Lane lane) const {
  double sum = 0;
  for (const OpIndex op : lanes_[static_cast<std::size_t>(lane)].ops) {
    sum += timings_[op].end - timings_[op].start;
  }
  return sum;
}

void Executor::drain() noexcept {
  // Nothing may still touch a buffer when the caller sees the failure.
  for (Ticket& ticket : tickets_) ticket = Ticket();
  // What ranks exchange ends with them, or with the group.
  try {
    while (!streams_.poll_exchanges()) std::this_thread::sleep_for(kPollInterval);
  } catch (const std::exception& error) {
    log_debug("while draining lane net: {}", error.what());
  }
  for (const Lane lane : {Lane::gpu, Lane::h2d, Lane::d2h}) {
    try {
      streams_.of(lane).synchronize();
    } catch (const std::exception& error) {
      log_debug("while draining lane {}: {}", plan::name_of(lane), error.what());
    }
  }
}

}  // namespace spillway::engine
