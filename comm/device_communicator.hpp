// DeviceCommunicator: this rank's end of a group of ranks, and the collective operations among them
// on the memory of their GPUs, by NCCL. Owned and called by one thread, the control thread of the
// rank, on which the rank's device is current. An operation is put on a stream of CUDA's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.hpp"
#include "runtime/base/dtype.hpp"
#include "runtime/base/units.hpp"

namespace spillway::comm {

namespace detail {
class DeviceOperations;
struct DeviceGroup;
}  // namespace detail

/// View device memory, which host code cannot read through them.
struct DeviceTarget {
  std::byte* address = nullptr;
  std::size_t size = 0;
};
struct DeviceSource {
  DeviceSource() = default;
  DeviceSource(const std::byte* first, std::size_t count) : address(first), size(count) {}
  DeviceSource(DeviceTarget target)  // NOLINT(google-explicit-constructor): as std::span
      : address(target.address), size(target.size) {}

  const std::byte* address = nullptr;
  std::size_t size = 0;
};

struct DeviceCommunicatorOptions {
  std::size_t depth = 64;              ///< operations started and not yet over
  std::uint32_t timeout_ms = 300'000;  ///< without progress on the devices
  /// Where to look for libnccl: `cuda_library_directories()`.
  std::vector<std::filesystem::path> library_directories{};
};

/// The operations are those of Communicator, with its rules for sizes, places and bytes sent. They
/// run in the order of their streams, each as soon as every rank's stream has come to it; every
/// rank starts the same collectives in the same order.
///
/// NCCL promises no order of sums, and rounds those of 16-bit types between ranks: what is exact in
/// every order is exact here, and all else has bits that depend on the number of ranks, on NCCL and
/// on how the GPUs are connected. Every rank has the same bits.
///
/// Each operation is also a short one of the host's communicator, by which ranks tell each other
/// what they start. What fails is thrown by the next call, `watch` above all: a rank that has
/// failed, is late for longer than a limit, or starts something else. The message names the rank,
/// as Communicator's do. The group is over then, on every rank, and so is the host's; what streams
/// still held has been ended, and buffers are undefined.
class DeviceCommunicator {
 public:
  using Source = DeviceSource;
  using Target = DeviceTarget;
  using Stream = void*;  ///< a cudaStream_t, and not the default stream

  /// Joins the ranks of `host`, which outlives this object, and returns when all of them have come.
  /// Throws `Error{not_supported}` where a rank has no CUDA or no NCCL.
  DeviceCommunicator(Communicator& host, const DeviceCommunicatorOptions& options);
  /// Waits for what was started. While an exception is on its way, ends it instead.
  ~DeviceCommunicator();
  DeviceCommunicator(const DeviceCommunicator&) = delete;
  DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

  /// Returns a group of some of these ranks, by the rules of Communicator::subgroup, with a
  /// communicator of NCCL's for itself. Returns when all of them have come. What ends one group
  /// ends the other, and aborts what streams hold of either. The last of them to go leaves the
  /// ranks.
  [[nodiscard]] std::unique_ptr<DeviceCommunicator> subgroup(std::span<const Rank> members);

  void all_gather(DeviceSource shard, DeviceTarget all, Stream stream);
  /// Sums in the type of the addends: NCCL cannot sum 16-bit types in fp32.
  void reduce_scatter(DeviceSource all, DeviceTarget shard, DType dtype, Stream stream);
  void all_reduce(DeviceTarget data, DType dtype, Stream stream);
  void broadcast(DeviceTarget data, Rank root, Stream stream);
  void reduce(DeviceTarget data, DType dtype, Rank root, Stream stream);
  void gather(DeviceSource shard, DeviceTarget all, Rank root, Stream stream);
  void scatter(DeviceSource all, DeviceTarget shard, Rank root, Stream stream);
  void all_to_all(DeviceSource source, DeviceTarget target, Stream stream);
  void send(DeviceSource data, Rank to, Stream stream);
  void receive(DeviceTarget data, Rank from, Stream stream);
  void exchange(DeviceSource source, Rank to, DeviceTarget target, Rank from, Stream stream);
  /// Delays later work of the stream until every rank's stream has come to its barrier.
  void barrier(Stream stream);

  /// Returns whether all that was started is over, in subgroups too. Whoever waits for a stream
  /// calls it repeatedly: nothing else notices that a rank has failed. Does not block.
  [[nodiscard]] bool watch();
  /// Blocks until all that was started is over.
  void wait();

  /// Bytes sent in this group alone.
  [[nodiscard]] Bytes sent(Operation operation) const;
  [[nodiscard]] Bytes sent() const;

 private:
  DeviceCommunicator(std::shared_ptr<detail::DeviceOperations> operations,
                     detail::DeviceGroup& group);

  std::shared_ptr<detail::DeviceOperations> operations_;  // every subgroup's too
  detail::DeviceGroup& group_;
};

}  // namespace spillway::comm
