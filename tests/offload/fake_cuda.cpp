#include "tests/offload/fake_cuda.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace spillway::offload::cuda {
namespace {

const std::byte* bytes(const void* address) { return static_cast<const std::byte*>(address); }

/// As CUDA's for small allocations, and less than the backend promises.
constexpr std::size_t kAlignment = 512;

}  // namespace

FakeCuda::~FakeCuda() {
  EXPECT_TRUE(allocations_.empty());
  EXPECT_TRUE(registered_.empty());
  EXPECT_EQ(streams_alive_, 0);
  EXPECT_EQ(events_alive_, 0);
}

std::string FakeCuda::describe(Status status) {
  return "cudaError" + std::to_string(status) + ": as the test wants it";
}

Status FakeCuda::device_count(int& count) {
  count = machine_.devices;
  return machine_.count_status;
}

void FakeCuda::versions(int& driver, int& runtime) {
  driver = machine_.driver_version;
  runtime = 13000;
}

Status FakeCuda::set_device(int device) {
  if (device >= machine_.devices) return kInvalidValue;
  const auto known = std::ranges::find(contexts_, device);
  current_ = known != contexts_.end() ? &*known : &contexts_.emplace_back(device);
  return kSuccess;
}

Status FakeCuda::current_device(int& device) {
  device = current_ == nullptr ? 0 : *current_;
  return kSuccess;
}

Status FakeCuda::current_context(ContextHandle& context) {
  context = current_;
  return kSuccess;
}

Status FakeCuda::set_context(ContextHandle context) {
  current_ = static_cast<int*>(context);
  return kSuccess;
}

Status FakeCuda::relax_captures() { return kSuccess; }

Status FakeCuda::properties(int, CudaDevice& found) {
  found = {.name = "Fake GPU",
           .pci_bus_id = "0000:ff:1f.7",
           .total_memory = 80_GiB,
           .free_memory = {},
           .l2_cache = 50_MiB,
           .compute_major = machine_.compute_major,
           .multiprocessors = 132,
           .numa_node = NodeIndex{0}};
  return kSuccess;
}

Status FakeCuda::free_memory(Bytes& free) {
  free = 79_GiB;
  return kSuccess;
}

Status FakeCuda::allocate(void*& address, std::size_t size) {
  if (machine_.allocate_status != kSuccess) return machine_.allocate_status;
  // Aligned to kAlignment, and never to twice that: the backend must not count on more.
  Allocation allocation{.memory = std::make_unique<std::byte[]>(size + 3 * kAlignment),
                        .size = size};
  std::byte* start = allocation.memory.get();
  const std::size_t over = reinterpret_cast<std::uintptr_t>(start) % (2 * kAlignment);
  start += over <= kAlignment ? kAlignment - over : 3 * kAlignment - over;
  allocations_.emplace(start, std::move(allocation));
  address = start;
  return kSuccess;
}

Status FakeCuda::deallocate(void* address) {
  return allocations_.erase(bytes(address)) == 1 ? machine_.end_status : kInvalidValue;
}

Status FakeCuda::device_of(const void* address, int& device) {
  device = on_device(address, 1) ? machine_.memory_device : -1;
  return kSuccess;
}

Status FakeCuda::register_host(void* address, std::size_t size) {
  if (machine_.register_status != kSuccess) return machine_.register_status;
  if (size > machine_.most_registered) return kInvalidValue;
  if (size > machine_.register_room) return kOutOfMemory;
  machine_.register_room -= size;
  registered_[bytes(address)] = size;
  return kSuccess;
}

Status FakeCuda::unregister_host(void* address) {
  return registered_.erase(bytes(address)) == 1 ? machine_.end_status : kInvalidValue;
}

bool FakeCuda::on_device(const void* address, std::size_t size) const {
  auto after = allocations_.upper_bound(bytes(address));
  if (after == allocations_.begin()) return false;
  --after;
  return bytes(address) + size <= after->first + after->second.size;
}

bool FakeCuda::registered(const void* address, std::size_t size) const {
  auto after = registered_.upper_bound(bytes(address));
  if (after == registered_.begin()) return false;
  --after;
  return bytes(address) + size <= after->first + after->second;
}

Status FakeCuda::create_stream(StreamHandle& stream, Urgency /*urgency*/) {
  QueuedStream& created = streams_.emplace_back();
  created.operations.reserve(256);
  stream = &created;
  ++streams_alive_;
  return kSuccess;
}

Status FakeCuda::destroy_stream(StreamHandle) {
  --streams_alive_;
  return machine_.end_status;
}

void FakeCuda::run_until(QueuedStream& stream, std::uint64_t position) {
  while (stream.completed < position) {
    const Operation operation = stream.operations[stream.completed - stream.base];
    if (operation.target != nullptr) {
      std::memcpy(operation.target, operation.source, operation.size);
    } else if (operation.function != nullptr) {
      operation.function(operation.argument);
    } else {
      run_until(*operation.awaited.stream, operation.awaited.position);
    }
    ++stream.completed;
  }
  if (stream.completed == stream.base + stream.operations.size()) {
    stream.base = stream.completed;
    stream.operations.clear();
  }
}

Status FakeCuda::synchronize(StreamHandle stream) {
  if (stream == nullptr) return kInvalidValue;  // the default stream
  auto& queued = *static_cast<QueuedStream*>(stream);
  run_until(queued, queued.base + queued.operations.size());
  return kSuccess;
}

Status FakeCuda::wait(StreamHandle stream, EventHandle event) {
  if (stream == nullptr) return kInvalidValue;
  const Recording recording = *static_cast<Recording*>(event);
  if (recording.stream == nullptr || recording.stream == stream) return kSuccess;
  static_cast<QueuedStream*>(stream)->operations.push_back({.awaited = recording});
  return kSuccess;
}

Status FakeCuda::is_captured(StreamHandle, bool& captured) {
  captured = machine_.captures;
  return kSuccess;
}

Status FakeCuda::copy(void* target, const void* source, std::size_t size, CopyDirection direction,
                      StreamHandle stream) {
  const bool up = direction == CopyDirection::to_device;
  const bool good = on_device(up ? target : source, size) && registered(up ? source : target, size);
  // CUDA copies to and from memory that is not registered while the caller waits.
  if (stream == nullptr || !good) return kInvalidValue;
  static_cast<QueuedStream*>(stream)->operations.push_back(
      {.target = target, .source = source, .size = size, .awaited = {}});
  return kSuccess;
}

Status FakeCuda::call_host(StreamHandle stream, void (*function)(void*), void* argument) {
  if (stream == nullptr) return kInvalidValue;
  static_cast<QueuedStream*>(stream)->operations.push_back(
      {.function = function, .argument = argument, .awaited = {}});
  return kSuccess;
}

Status FakeCuda::create_event(EventHandle& event) {
  event = &events_.emplace_back();
  ++events_alive_;
  return kSuccess;
}

Status FakeCuda::destroy_event(EventHandle) {
  --events_alive_;
  return machine_.end_status;
}

Status FakeCuda::record(EventHandle event, StreamHandle stream) {
  if (stream == nullptr) return kInvalidValue;
  auto& queued = *static_cast<QueuedStream*>(stream);
  *static_cast<Recording*>(event) = {.stream = &queued,
                                     .position = queued.base + queued.operations.size()};
  return kSuccess;
}

Status FakeCuda::query(EventHandle event) {
  const Recording recording = *static_cast<Recording*>(event);
  if (recording.stream == nullptr) return kSuccess;
  QueuedStream& stream = *recording.stream;
  if (stream.completed < recording.position) {
    run_until(stream, stream.completed + 1);
    return kNotReady;
  }
  return machine_.query_status;
}

}  // namespace spillway::offload::cuda
