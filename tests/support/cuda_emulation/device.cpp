#include "tests/support/cuda_emulation/device.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "tests/support/cuda_emulation/grid.hpp"

namespace cuda_emulation {

void set_order(std::uint64_t seed) { Device::Lock()->set_order(seed); }
void set_devices(int count) { Device::Lock()->devices = count; }
void limit_pinned(std::uint64_t bytes) { Device::Lock()->memory.most_pinned = bytes; }
void set_integrated(bool integrated) { Device::Lock()->integrated = integrated; }
Statistics statistics() { return Device::Lock()->statistics; }
void refuse_to_block() { Device::Lock()->refuse_to_block(); }
std::uint64_t discard_pending() { return Device::Lock()->discard(); }
void run_blocks_at_ends(std::uint64_t count) { Device::Lock()->blocks_at_ends = count; }
void* default_stream(int device) { return Device::Lock()->default_stream(device); }
void capture_stream(void* stream, bool captured) {
  const Device::Lock device;
  static_cast<CUstream_st*>(stream)->captured = captured;
}
void hold_stream(void* stream) {
  const Device::Lock device;
  static_cast<CUstream_st*>(stream)->held = true;
}
void let_go_of_stream(void* stream) {
  const Device::Lock device;
  static_cast<CUstream_st*>(stream)->held = false;
  device->announce();
}
void break_device(int status) { Device::Lock()->broken = static_cast<cudaError_t>(status); }

Device::Device() {
  const char* const seed = std::getenv("SPILLWAY_CUDA_EMULATION_SEED");
  set_order(seed != nullptr ? std::strtoull(seed, nullptr, 10) : std::uint64_t{late});
  const char* const count = std::getenv("SPILLWAY_CUDA_EMULATION_DEVICES");
  if (count != nullptr) devices = std::atoi(count);
  const char* const pinned = std::getenv("SPILLWAY_CUDA_EMULATION_PINNED");
  if (pinned != nullptr) memory.most_pinned = std::strtoull(pinned, nullptr, 10);
  never_blocks_ = std::getenv("SPILLWAY_CUDA_EMULATION_NEVER_BLOCKS") != nullptr;
}

Device& Device::instance() {
  static auto* const device =
      new Device;  // never destroyed: other static objects use it at the end
  return *device;
}

void Device::set_order(std::uint64_t seed) {
  order_ = seed;
  random_.seed(seed);
  eagerness_ = static_cast<unsigned>(random_() % 8);
}

CUstream_st* Device::create_stream() {
  streams_.push_back(std::make_unique<CUstream_st>());
  streams_.back()->device = current_device();
  return streams_.back().get();
}

CUstream_st* Device::default_stream(int device) {
  CUstream_st*& stream = default_streams_[device];
  if (stream == nullptr) {
    stream = create_stream();
    stream->device = device;
  }
  return stream;
}

bool Device::has(const CUstream_st* stream) const {
  return std::ranges::any_of(streams_, [&](const auto& one) { return one.get() == stream; });
}

bool Device::captures() const {
  return std::ranges::any_of(streams_, [](const auto& one) { return one->captured; });
}

void Device::destroy_stream(CUstream_st* stream) {
  finish(*stream);
  std::erase_if(streams_, [&](const auto& one) { return one.get() == stream; });
}

void Device::enqueue(CUstream_st& stream, Operation operation) {
  if (stream.operations.size() == kMostPending && never_blocks_) {
    fault("a stream holds %zu operations: a launch would block", kMostPending);
  }
  while (stream.operations.size() == kMostPending && !run_first(stream)) {
    if (!run_any()) changed_.wait(mutex_);
  }
  operation.number = ++enqueued_;
  stream.operations.push_back(std::move(operation));
  statistics.most_pending =
      std::max<std::uint64_t>(statistics.most_pending, stream.operations.size());
  run_some();
  announce();
}

void Device::record(CUevent_st& event, CUstream_st& stream) {
  event.last = std::make_shared<Mark>();
  event.last->stream = &stream;
  enqueue(stream, {.work = {}, .records = event.last, .waits = {}});
}

bool Device::may_run(const CUstream_st& stream) {
  if (stream.operations.empty() || stream.held) return false;
  const Operation& first = stream.operations.front();
  if (first.waits != nullptr && !first.waits->done) return false;
  return !first.ready || first.ready();
}

void Device::run_one(CUstream_st& stream) {
  const Operation operation = std::move(stream.operations.front());
  stream.operations.pop_front();
  if (operation.number < newest_run_) ++statistics.overtaken;
  newest_run_ = std::max(newest_run_, operation.number);
  // Whichever thread lets it run.
  const int current = std::exchange(current_device(), stream.device);
  if (operation.work) operation.work();
  current_device() = current;
  if (operation.records != nullptr) {
    operation.records->done = true;
    operation.records->when = std::chrono::steady_clock::now();
  }
}

bool Device::run_first(CUstream_st& stream) {
  const std::shared_ptr<Mark> waits = stream.operations.front().waits;
  if (waits != nullptr && !try_finish(*waits)) return false;
  if (!may_run(stream)) return false;
  run_one(stream);
  return true;
}

bool Device::run_any() {
  if (streams_.empty()) return false;
  const std::size_t first = random_() % streams_.size();
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    CUstream_st& stream = *streams_[(first + i) % streams_.size()];
    if (!may_run(stream)) continue;
    run_one(stream);
    return true;
  }
  return false;
}

void Device::run_some() {
  if (order_ == late) return;
  if (order_ == early) {
    while (run_any()) {
    }
    return;
  }
  if (random_() % 8 >= eagerness_) return;
  for (std::uint64_t count = random_() % 4; count > 0 && run_any(); --count) {
  }
}

bool Device::try_finish(CUstream_st& stream) {
  while (!stream.operations.empty()) {
    if (order_ != late && run_any()) continue;
    if (!run_first(stream) && !run_any()) return false;
  }
  return true;
}

bool Device::try_finish(const Mark& mark) {
  while (!mark.done) {
    if (order_ != late && run_any()) continue;
    CUstream_st& stream = *mark.stream;
    if (stream.operations.empty()) fault("an event that its stream no longer holds");
    if (!run_first(stream) && !run_any()) return false;
  }
  return true;
}

void Device::finish(CUstream_st& stream) {
  while (!try_finish(stream)) changed_.wait(mutex_);
}

void Device::finish(const Mark& mark) {
  while (!try_finish(mark)) changed_.wait(mutex_);
}

void Device::finish_all(int device) {
  const auto all = [this, device] {
    return std::ranges::all_of(streams_, [this, device](const auto& stream) {
      return stream->device != device || try_finish(*stream);
    });
  };
  while (!all()) changed_.wait(mutex_);
}

const Operation* Device::run_to_obstacle(CUstream_st& stream) {
  return try_finish(stream) || stream.held ? nullptr : &stream.operations.front();
}

std::uint64_t Device::discard() {
  std::uint64_t count = 0;
  for (const auto& stream : streams_) {
    count += stream->operations.size();
    stream->operations.clear();
  }
  return count;
}

bool Device::query(const Mark& mark) {
  if (mark.done) return true;
  if (random_() % 4 == 0) {
    static_cast<void>(try_finish(mark));
  } else {
    run_some();
  }
  return mark.done;
}

bool Device::needs(const void* host, std::size_t size) const {
  const auto first = reinterpret_cast<std::uintptr_t>(host);
  return std::ranges::any_of(streams_, [&](const auto& stream) {
    return std::ranges::any_of(stream->operations, [&](const Operation& operation) {
      const auto start = reinterpret_cast<std::uintptr_t>(operation.host);
      return operation.host != nullptr && start < first + size &&
             first < start + operation.host_size;
    });
  });
}

}  // namespace cuda_emulation
