// NCCL by its documentation, for ranks that are threads of this process, on one emulated device or
// on one each. An operation is one of its stream, which ends once those of all ranks that take part
// have come to the front of theirs. No call has begun when it returns (ncclInProgress), as NCCL may
// do where a communicator does not block: it is on its stream once its rank has asked for errors
// often enough. Ranks that call different things wait for each other without end.
#include <nccl.h>

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/cuda_emulation/device.hpp"
#include "tests/support/cuda_emulation/grid.hpp"
#include "tests/support/cuda_emulation/library_call.hpp"
#include "tests/support/cuda_emulation/nccl_clique.hpp"

using cuda_emulation::Device;
using cuda_emulation::expect_operand;
using cuda_emulation::fault;
using namespace cuda_emulation::nccl;

namespace {

/// So often a rank asks for errors before what it called has begun.
constexpr int kPolls = 5;
/// From here on communicators can be aborted in a group.
constexpr int kGroupAborts = 22203;

}  // namespace

struct ncclComm {
  std::shared_ptr<Member> member;
};

namespace {

std::map<std::string, std::weak_ptr<Clique>> cliques;  // by id
thread_local int version = NCCL_VERSION_CODE;

/// What the thread has called since ncclGroupStart: one operation of one communicator.
struct Group {
  int depth = 0;
  std::vector<Transfer> transfers{};
  std::shared_ptr<Member> member{};
  cudaStream_t stream = nullptr;
  std::vector<std::shared_ptr<Member>> aborted{};
};
thread_local Group group;

/// The rank starts something: what it started before has begun.
void expect_idle(const Member& member) {
  const bool busy = member.polls > 0 || std::ssize(member.clique->joined) < member.clique->ranks;
  if (busy) fault("NCCL is called while the call before is in progress");
}

ncclResult_t launch(Member& member, cudaStream_t stream, std::function<bool()> ready) {
  expect_idle(member);
  if (!Device::Lock()->has(stream) || stream->device != member.device) {
    fault("NCCL is called on a stream that the rank's device has not");
  }
  member.streams.insert(stream);
  member.launches.push_back({stream, std::move(ready)});
  member.polls = kPolls;
  return ncclInProgress;
}

ncclResult_t start(ncclComm_t communicator, cudaStream_t stream, const Collective& call) {
  const Device::Lock device;
  if (group.depth > 0) fault("a collective in a group is not emulated");
  const std::shared_ptr<Member> member = communicator->member;
  if (call.root < 0 || call.root >= member->clique->ranks) return ncclInvalidArgument;
  const int ranks = member->clique->ranks;
  expect_operand("what a collective reads", call.source, source_bytes(call, ranks),
                 size_of(call.type));
  expect_operand("what a collective writes", call.target, target_bytes(call, ranks),
                 size_of(call.type));
  return launch(*member, stream, [member, number = member->collectives++, call] {
    return meet(*member, number, call);
  });
}

ncclResult_t add_to_group(ncclComm_t communicator, cudaStream_t stream, const Transfer& one) {
  const Device::Lock device;
  if (group.depth == 0) fault("a send or receive outside of a group is not emulated");
  if (one.peer < 0 || one.peer >= communicator->member->clique->ranks) return ncclInvalidArgument;
  expect_operand("what is sent or received", one.address, one.size, 1);
  group.member = communicator->member;
  group.stream = stream;
  group.transfers.push_back(one);
  return ncclSuccess;
}

/// As the frees at the end of an abort, which wait for all that runs on the device.
void wait_for_device(const Member& aborted) {
  const Device::Lock device;
  for (const cudaStream_t stream : aborted.streams) {
    if (!device->has(stream)) continue;
    const auto* const obstacle = device->run_to_obstacle(*stream);
    const Member* const other = obstacle == nullptr ? nullptr : obstacle->member;
    if (other == nullptr || other->aborted || other->rank_of_job != aborted.rank_of_job) continue;
    if (stands_still(*other)) {
      fault("NCCL's abort waits for another communicator of its rank, which nobody has aborted");
    }
  }
}

}  // namespace

namespace cuda_emulation {

void pretend_nccl(int other_version) { version = other_version; }

}  // namespace cuda_emulation

extern "C" {

ncclResult_t ncclGetVersion(int* result) {
  // Other ranks are ahead of one that has yet to notice that it does not fit.
  if (version != NCCL_VERSION_CODE) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  *result = version;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
  }
  return "unknown result code";
}
const char* ncclGetLastError(ncclComm_t /*communicator*/) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const Device::Lock device;
  static std::uint64_t ids = 0;
  *id = {};
  ++ids;
  std::memcpy(id->internal, &ids, sizeof ids);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const Device::Lock device;
  if (config->blocking != 0) fault("a communicator that blocks is not emulated");
  std::weak_ptr<Clique>& known = cliques[std::string(id.internal, sizeof id.internal)];
  std::shared_ptr<Clique> clique = known.lock();
  if (clique == nullptr) known = clique = std::make_shared<Clique>(ranks);
  if (clique->ranks != ranks || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  if (!clique->joined.insert(rank).second) return ncclInvalidUsage;
  *communicator = new ncclComm{std::make_shared<Member>(
      Member{.clique = clique, .rank = rank, .device = cuda_emulation::current_device()})};
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  const Device::Lock device;
  Member& member = *communicator->member;
  *error = error_of(member);
  if (*error != ncclSuccess) return ncclSuccess;
  *error = ncclInProgress;
  if (std::ssize(member.clique->joined) < member.clique->ranks) return ncclSuccess;
  if (member.polls > 0 && --member.polls > 0) return ncclSuccess;
  for (Launch& one : member.launches) {
    device->enqueue(*one.stream, {.ready = std::move(one.ready), .member = &member});
  }
  member.launches.clear();
  *error = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
  const Device::Lock device;
  expect_idle(*communicator->member);
  communicator->member->finalized = true;
  communicator->member->polls = kPolls;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  const Device::Lock device;
  expect_idle(*communicator->member);
  if (!communicator->member->finalized) fault("NCCL's communicator is destroyed without a word");
  delete communicator;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  const Device::Lock device;
  if (group.depth > 0 && version < kGroupAborts) fault("this NCCL aborts nothing in a group");
  const std::shared_ptr<Member> member = communicator->member;
  member->aborted = true;
  member->launches.clear();  // which hold the member
  member->clique->broken = true;
  delete communicator;
  device->announce();
  if (group.depth > 0) {
    group.aborted.push_back(member);
  } else {
    wait_for_device(*member);
  }
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return ncclInvalidUsage;
  if (--group.depth > 0) return ncclSuccess;
  for (const auto& member : std::exchange(group.aborted, {})) wait_for_device(*member);
  if (group.transfers.empty()) return ncclSuccess;
  const Device::Lock device;
  const Group ended = std::exchange(group, {});
  return launch(*ended.member, ended.stream,
                [member = ended.member, transfers = ended.transfers, first = true]() mutable {
                  return exchange(*member, transfers, std::exchange(first, false));
                });
}
ncclResult_t ncclSend(const void* source, std::size_t count, ncclDataType_t type, int to,
                      ncclComm_t communicator, cudaStream_t stream) {
  auto* const address = static_cast<std::byte*>(const_cast<void*>(source));
  return add_to_group(
      communicator, stream,
      {.address = address, .size = count * size_of(type), .peer = to, .sends = true});
}
ncclResult_t ncclRecv(void* target, std::size_t count, ncclDataType_t type, int from,
                      ncclComm_t communicator, cudaStream_t stream) {
  return add_to_group(communicator, stream,
                      {.address = static_cast<std::byte*>(target),
                       .size = count * size_of(type),
                       .peer = from,
                       .sends = false});
}

ncclResult_t ncclAllGather(const void* source, void* target, std::size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  return start(communicator, stream, {Kind::all_gather, count, type, 0, source, target});
}
ncclResult_t ncclReduceScatter(const void* source, void* target, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t /*sum*/, ncclComm_t communicator,
                               cudaStream_t stream) {
  return start(communicator, stream, {Kind::reduce_scatter, count, type, 0, source, target});
}
ncclResult_t ncclAllReduce(const void* source, void* target, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t /*sum*/, ncclComm_t communicator, cudaStream_t stream) {
  return start(communicator, stream, {Kind::all_reduce, count, type, 0, source, target});
}
ncclResult_t ncclBroadcast(const void* source, void* target, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t communicator, cudaStream_t stream) {
  return start(communicator, stream, {Kind::broadcast, count, type, root, source, target});
}
ncclResult_t ncclReduce(const void* source, void* target, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t /*sum*/, int root, ncclComm_t communicator,
                        cudaStream_t stream) {
  return start(communicator, stream, {Kind::reduce, count, type, root, source, target});
}

}  // extern "C"
