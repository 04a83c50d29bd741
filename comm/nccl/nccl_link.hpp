// The backend `nccl`, as DeviceCommunicator sees it. A build without CUDA has it too, and refuses
// to make one.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "comm/communicator.hpp"
#include "comm/detail/device_link.hpp"

namespace spillway::comm::detail {

struct NcclLinkOptions {
  std::size_t depth = 0;                ///< slots
  std::chrono::milliseconds timeout{};  ///< for the end, when NCCL says goodbye to the other ranks
  std::span<const std::filesystem::path> directories{};  ///< where libnccl may lie
};

/// Begins to join the ranks of `host`, each with the device that is current on its thread, and
/// returns: the link is busy until all of them have come. Throws `Error{not_supported}` where CUDA,
/// NCCL or the version of NCCL that rank 0 has is missing, and `Error{device_error}`.
[[nodiscard]] std::unique_ptr<DeviceLink> make_nccl_link(Communicator& host,
                                                         const NcclLinkOptions& options);

/// Ends what links made here have on the streams, with buffers undefined. Those of a rank are
/// aborted together: one alone may wait for work of another that nobody ends. Only destruction may
/// follow. Logs what NCCL fails with.
void abort_nccl_links(std::span<DeviceLink* const> links) noexcept;

}  // namespace spillway::comm::detail
