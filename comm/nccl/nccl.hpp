// The functions of NCCL that we call, from a library that is loaded when it is first wanted.
#pragma once

#include <nccl.h>

#include <filesystem>
#include <span>
#include <string>

#include "comm/nccl/nccl_version.hpp"
#include "runtime/base/shared_library.hpp"

namespace spillway::comm::detail {

inline constexpr const char* kNcclName = "libnccl.so.2";

struct Nccl {
  /// Throws `Error{not_supported}` if the library, or one of the functions, is missing or too old.
  explicit Nccl(std::span<const std::filesystem::path> directories);

  SharedLibrary library;
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init_rank;
  decltype(&ncclCommGetAsyncError) get_async_error;
  decltype(&ncclCommFinalize) finalize;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclReduce) reduce;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;

  [[nodiscard]] int version() const;
  /// Whether several communicators can be aborted in one group: since 2.22.
  [[nodiscard]] bool aborts_groups() const noexcept;
  /// Returns NCCL's words for `status`, and for what happened last, if it has any.
  [[nodiscard]] std::string text_of(ncclResult_t status, ncclComm_t communicator) const;
  /// Throws `Error{device_error}` unless `status` is success or "in progress". `what` was tried.
  void check(ncclResult_t status, const char* what, ncclComm_t communicator) const;
};

}  // namespace spillway::comm::detail
