#include "comm/nccl/nccl_link.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <thread>
#include <utility>
#include <vector>

#include "comm/nccl/nccl.hpp"
#include "runtime/base/cuda/check.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway::comm::detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPause{1};

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::fp32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::fp16: return ncclFloat16;
  }
  return ncclFloat32;
}

class CudaEvent {
 public:
  CudaEvent() {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event");
  }
  CudaEvent(CudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&&) = delete;
  ~CudaEvent() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }

  void record(cudaStream_t stream) {
    check_cuda(cudaEventRecord(event_, stream), "recording an event");
  }
  [[nodiscard]] bool done() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // no later call is blamed for it
      return false;
    }
    check_cuda(status, "a collective");
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Memory that a barrier sums, because NCCL has no barrier.
class BarrierWord {
 public:
  static constexpr std::size_t kBytes = 4;

  BarrierWord() { check_cuda(cudaMalloc(&address_, kBytes), "allocating a word for barriers"); }
  BarrierWord(const BarrierWord&) = delete;
  BarrierWord& operator=(const BarrierWord&) = delete;
  ~BarrierWord() { static_cast<void>(cudaFree(address_)); }

  [[nodiscard]] void* cleared(cudaStream_t stream) {
    check_cuda(cudaMemsetAsync(address_, 0, kBytes, stream), "clearing a word");
    return address_;
  }
  /// Leaves the word to the end of the process: to free it would be to wait for the device.
  void keep() { address_ = nullptr; }

 private:
  void* address_ = nullptr;
};

/// Message of rank 0 to the others: how to find it, and what it speaks.
struct Invitation {
  ncclUniqueId id{};
  int version = 0;
};

class NcclLink final : public DeviceLink {
 public:
  NcclLink(Communicator& host, const NcclLinkOptions& options)
      : nccl_(options.directories),
        rank_(host.rank().value()),
        ranks_(host.ranks()),
        timeout_(options.timeout),
        slots_(options.depth) {
    const Invitation invitation = invite(host);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    nccl_.check(nccl_.init_rank(&communicator_, static_cast<int>(ranks_), invitation.id,
                                static_cast<int>(rank_), &config),
                "joining the ranks", nullptr);
  }

  ~NcclLink() override {
    if (communicator_ != nullptr) leave();
  }

  void enqueue(const Call& call, void* stream, std::size_t slot) override {
    const auto native = static_cast<cudaStream_t>(stream);
    slots_[slot].closed = false;
    slots_[slot].front.record(native);
    const bool empty = bytes_of_all(call, ranks_) == 0;
    if (empty && call.operation != Operation::barrier) return;
    start(call, native);
  }

  void close(void* stream, std::size_t slot) override {
    slots_[slot].back.record(static_cast<cudaStream_t>(stream));
    slots_[slot].closed = true;
  }

  Mark mark(std::size_t slot) override {
    const Slot& marked = slots_[slot];
    if (marked.closed && marked.back.done()) return Mark::behind;
    return marked.front.done() ? Mark::within : Mark::before;
  }

  Health health() override {
    ncclResult_t status = ncclSuccess;
    nccl_.check(nccl_.get_async_error(communicator_, &status), "asking for errors", communicator_);
    using State = Health::State;
    if (status == ncclSuccess) return {};
    if (status == ncclInProgress) return {.state = State::busy};
    return {.state = status == ncclRemoteError ? State::failed_elsewhere : State::failed,
            .text = nccl_.text_of(status, communicator_)};
  }

  /// Ends what is on the streams, in a group of NCCL's or alone.
  void abort() noexcept {
    barrier_word_.keep();
    if (communicator_ != nullptr) log_abort(nccl_.abort(std::exchange(communicator_, nullptr)));
  }
  void log_abort(ncclResult_t status) const noexcept {
    if (status == ncclSuccess || status == ncclInProgress) return;
    log_error("NCCL: an abort failed: {}", nccl_.error_string(status));
  }
  [[nodiscard]] const Nccl& nccl() const { return nccl_; }

 private:
  struct Slot {
    CudaEvent front{};
    CudaEvent back{};
    bool closed = false;
  };

  [[nodiscard]] Invitation invite(Communicator& host) const {
    Invitation invitation{.version = nccl_.version()};
    if (rank_ == 0) nccl_.check(nccl_.get_unique_id(&invitation.id), "making an id", nullptr);
    host.broadcast(std::as_writable_bytes(std::span{&invitation, 1}), Rank{0}).wait();
    if (invitation.version != nccl_.version()) {
      throw Error(ErrorCode::not_supported,
                  fmt::format("rank {} has NCCL {} ({}) and rank 0 has {}: install the same", rank_,
                              nccl_version_text(nccl_.version()), nccl_.library.path(),
                              nccl_version_text(invitation.version)));
    }
    host.barrier().wait();  // NCCL would wait for a rank that is not going to join
    return invitation;
  }

  void start(const Call& call, cudaStream_t stream);
  /// Calls `each(rank)` for every rank, in one group of sends and receives, none of which waits for
  /// another.
  template <class Each>
  void in_group(const char* what, Each each) {
    nccl_.check(nccl_.group_start(), what, communicator_);
    try {
      for (std::uint32_t rank = 0; rank < ranks_; ++rank) each(rank);
    } catch (const Error&) {
      static_cast<void>(nccl_.group_end());  // the abort that follows is no part of the group
      throw;
    }
    nccl_.check(nccl_.group_end(), what, communicator_);
  }
  void send(std::span<const std::byte> data, std::uint32_t to, cudaStream_t stream) {
    nccl_.check(nccl_.send(data.data(), data.size(), ncclUint8, static_cast<int>(to), communicator_,
                           stream),
                "send", communicator_);
  }
  void receive(std::span<std::byte> data, std::uint32_t from, cudaStream_t stream) {
    nccl_.check(nccl_.receive(data.data(), data.size(), ncclUint8, static_cast<int>(from),
                              communicator_, stream),
                "receive", communicator_);
  }

  /// Leaves the communicator in agreement with the other ranks, or alone when that takes too long.
  void leave() noexcept {
    const Clock::time_point end = Clock::now() + timeout_;
    ncclResult_t status = nccl_.finalize(communicator_);
    while (status == ncclInProgress && Clock::now() < end) {
      std::this_thread::sleep_for(kPause);
      if (nccl_.get_async_error(communicator_, &status) != ncclSuccess) break;
    }
    if (status != ncclSuccess) {
      log_error("NCCL: leaving the ranks failed: {}", nccl_.error_string(status));
      return abort();
    }
    status = nccl_.destroy(std::exchange(communicator_, nullptr));
    if (status != ncclSuccess) {
      log_error("NCCL: freeing a communicator failed: {}", nccl_.error_string(status));
    }
  }

  const Nccl nccl_;
  const std::uint32_t rank_;
  const std::uint32_t ranks_;
  const std::chrono::milliseconds timeout_;
  std::vector<Slot> slots_;
  BarrierWord barrier_word_;
  ncclComm_t communicator_ = nullptr;
};

void NcclLink::start(const Call& call, cudaStream_t stream) {
  const char* const what = name_of(call.operation).data();  // ends with a zero: a literal
  const ncclDataType_t type = type_of(call.types.addend);
  const std::size_t size = size_of(call.types.addend);
  const int root = static_cast<int>(call.root.value());
  const auto source = call.source;
  const auto target = call.target;
  const auto part = [&](auto all, std::uint32_t rank) {
    return all.subspan(all.size() / ranks_ * rank, all.size() / ranks_);
  };
  switch (call.operation) {
    case Operation::all_gather:
      return nccl_.check(nccl_.all_gather(source.data(), target.data(), source.size(), ncclUint8,
                                          communicator_, stream),
                         what, communicator_);
    case Operation::reduce_scatter:
      return nccl_.check(nccl_.reduce_scatter(source.data(), target.data(), target.size() / size,
                                              type, ncclSum, communicator_, stream),
                         what, communicator_);
    case Operation::all_reduce:
      return nccl_.check(nccl_.all_reduce(source.data(), target.data(), target.size() / size, type,
                                          ncclSum, communicator_, stream),
                         what, communicator_);
    case Operation::reduce:
      return nccl_.check(nccl_.reduce(source.data(), target.data(), target.size() / size, type,
                                      ncclSum, root, communicator_, stream),
                         what, communicator_);
    case Operation::broadcast:
      return nccl_.check(nccl_.broadcast(target.data(), target.data(), target.size(), ncclUint8,
                                         root, communicator_, stream),
                         what, communicator_);
    case Operation::gather:
      return in_group(what, [&](std::uint32_t rank) {
        if (rank == call.root.value()) send(source, rank, stream);
        if (rank_ == call.root.value()) receive(part(target, rank), rank, stream);
      });
    case Operation::scatter:
      return in_group(what, [&](std::uint32_t rank) {
        if (rank_ == call.root.value()) send(part(source, rank), rank, stream);
        if (rank == call.root.value()) receive(target, rank, stream);
      });
    case Operation::all_to_all:
      return in_group(what, [&](std::uint32_t rank) {
        send(part(source, rank), rank, stream);
        receive(part(target, rank), rank, stream);
      });
    case Operation::send:
    case Operation::receive:
    case Operation::exchange:
      return in_group(what, [&](std::uint32_t rank) {
        const bool sends = call.operation != Operation::receive && !source.empty();
        const bool receives = call.operation != Operation::send && !target.empty();
        if (sends && rank == call.root.value()) send(source, rank, stream);
        if (receives && rank == call.from.value()) receive(target, rank, stream);
      });
    case Operation::barrier: {
      void* const word = barrier_word_.cleared(stream);
      return nccl_.check(nccl_.all_reduce(word, word, BarrierWord::kBytes, ncclUint8, ncclSum,
                                          communicator_, stream),
                         what, communicator_);
    }
  }
}

}  // namespace

std::unique_ptr<DeviceLink> make_nccl_link(Communicator& host, const NcclLinkOptions& options) {
  return std::make_unique<NcclLink>(host, options);
}

void abort_nccl_links(std::span<DeviceLink* const> links) noexcept {
  if (links.empty()) return;
  const auto& first = static_cast<const NcclLink&>(*links.front());
  // An abort frees memory of the device, which waits for all that runs there.
  const bool together = first.nccl().aborts_groups();
  if (together) first.log_abort(first.nccl().group_start());
  for (DeviceLink* const link : links) static_cast<NcclLink&>(*link).abort();
  if (together) first.log_abort(first.nccl().group_end());
}

}  // namespace spillway::comm::detail
