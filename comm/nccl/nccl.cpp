#include "comm/nccl/nccl.hpp"

#include <fmt/format.h>

#include <type_traits>

#include "runtime/base/error.hpp"

namespace spillway::comm::detail {
namespace {

constexpr const char* kRemedy =
    "GPUs of several ranks communicate with NCCL 2.18 or newer; install it, or the Python package "
    "nvidia-nccl-cu13, or run tools/setup cuda";

template <class Pointer>
void find(const SharedLibrary& library, Pointer& function, const char* name) {
  function = library.function<std::remove_pointer_t<Pointer>>(name);
}

}  // namespace

Nccl::Nccl(std::span<const std::filesystem::path> directories)
    : library(kNcclName, directories, kRemedy, reason_against_nccl<decltype(ncclGetVersion)>) {
  find(library, get_version, "ncclGetVersion");
  find(library, error_string, "ncclGetErrorString");
  find(library, last_error, "ncclGetLastError");
  find(library, get_unique_id, "ncclGetUniqueId");
  find(library, init_rank, "ncclCommInitRankConfig");
  find(library, get_async_error, "ncclCommGetAsyncError");
  find(library, finalize, "ncclCommFinalize");
  find(library, destroy, "ncclCommDestroy");
  find(library, abort, "ncclCommAbort");
  find(library, group_start, "ncclGroupStart");
  find(library, group_end, "ncclGroupEnd");
  find(library, all_gather, "ncclAllGather");
  find(library, reduce_scatter, "ncclReduceScatter");
  find(library, all_reduce, "ncclAllReduce");
  find(library, broadcast, "ncclBroadcast");
  find(library, reduce, "ncclReduce");
  find(library, send, "ncclSend");
  find(library, receive, "ncclRecv");
}

int Nccl::version() const {
  int version = 0;
  if (get_version(&version) != ncclSuccess) {
    throw Error(ErrorCode::not_supported,
                fmt::format("{} does not tell its version: {}", library.path(), kRemedy));
  }
  return version;
}

bool Nccl::aborts_groups() const noexcept {
  int version = 0;
  return get_version(&version) == ncclSuccess && version >= kFirstWithGroupAborts;
}

std::string Nccl::text_of(ncclResult_t status, ncclComm_t communicator) const {
  std::string text = error_string(status);
  const char* const last = last_error(communicator);
  if (last != nullptr && *last != '\0') text += fmt::format(" ({})", last);
  return text;
}

void Nccl::check(ncclResult_t status, const char* what, ncclComm_t communicator) const {
  if (status == ncclSuccess || status == ncclInProgress) [[likely]] {
    return;
  }
  throw Error(ErrorCode::device_error,
              fmt::format("NCCL: {} failed: {}; NCCL_DEBUG=INFO in the environment says more", what,
                          text_of(status, communicator)),
              static_cast<int>(status));
}

}  // namespace spillway::comm::detail
