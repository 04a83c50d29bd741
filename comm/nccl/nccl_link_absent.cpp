// In place of nccl_link.cpp in a build without CUDA or without NCCL's header.
#include "comm/nccl/nccl_link.hpp"
#include "runtime/base/error.hpp"

namespace spillway::comm::detail {

std::unique_ptr<DeviceLink> make_nccl_link(Communicator& /*host*/,
                                           const NcclLinkOptions& /*options*/) {
  throw Error(ErrorCode::not_supported,
              "this build has no communication by NCCL: it was made without CUDA 13 or without "
              "nccl.h; tools/setup cuda installs both");
}

void abort_nccl_links(std::span<DeviceLink* const> /*none*/) noexcept {}

}  // namespace spillway::comm::detail
