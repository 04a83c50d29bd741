#include "tests/support/cuda_emulation/nccl_clique.hpp"

#include <algorithm>
#include <cstring>

#include "tests/support/cuda_emulation/device.hpp"
#include "tests/support/cuda_emulation/library_call.hpp"

namespace cuda_emulation {
namespace nccl {
namespace {

/// By rank, and by the number of ranks of its group or 0.
std::map<std::pair<int, int>, ncclResult_t> failures;
bool lost = false;  // what ranks start does not end

cudaDataType_t data_type(ncclDataType_t type) {
  return type == ncclFloat32 ? CUDA_R_32F : type == ncclFloat16 ? CUDA_R_16F : CUDA_R_16BF;
}

/// Adds in the type itself, as ranks in a ring do.
void add(ncclDataType_t type, std::vector<std::byte>& sum, const std::vector<std::byte>& addend) {
  for (std::size_t i = 0; i < sum.size() / size_of(type); ++i) {
    if (type == ncclUint8) {
      sum[i] =
          static_cast<std::byte>(static_cast<unsigned>(sum[i]) + static_cast<unsigned>(addend[i]));
      continue;
    }
    const cudaDataType_t data = data_type(type);
    cuda_emulation::store(
        data, sum.data(), i,
        cuda_emulation::load(data, sum.data(), i) + cuda_emulation::load(data, addend.data(), i));
  }
}

/// Reads all that it needs before it writes: buffers may be in place.
void perform(const Meeting& meeting) {
  const Collective& first = *meeting.calls.front();
  const auto ranks = static_cast<int>(meeting.calls.size());
  std::vector<std::byte> all;
  std::vector<std::byte> sum;
  for (const auto& call : meeting.calls) {
    const auto* const start = static_cast<const std::byte*>(call->source);
    const std::vector<std::byte> source(start, start + source_bytes(*call, ranks));
    const bool is_root = &call == &meeting.calls[static_cast<std::size_t>(first.root)];
    if (first.kind == Kind::all_gather || (first.kind == Kind::broadcast && is_root)) {
      all.insert(all.end(), source.begin(), source.end());
    } else if (first.kind != Kind::broadcast && sum.empty()) {
      sum = source;
    } else if (first.kind != Kind::broadcast) {
      add(first.type, sum, source);
    }
  }
  const std::vector<std::byte>& result = sum.empty() ? all : sum;
  for (std::size_t rank = 0; rank < meeting.calls.size(); ++rank) {
    const Collective& call = *meeting.calls[rank];
    if (first.kind == Kind::reduce && rank != static_cast<std::size_t>(first.root)) continue;
    const std::size_t size = target_bytes(call, ranks);
    const std::size_t offset = first.kind == Kind::reduce_scatter ? rank * size : 0;
    std::memcpy(call.target, result.data() + offset, size);
  }
}

/// Copies what both ends of a pair have come to.
void transfer(Clique& clique, const std::pair<int, int>& pair) {
  std::deque<Transfer>& sends = clique.sends[pair];
  std::deque<Transfer>& receives = clique.receives[pair];
  while (!sends.empty() && !receives.empty() && sends.front().size == receives.front().size) {
    std::memmove(receives.front().address, sends.front().address, sends.front().size);
    *sends.front().done = true;
    *receives.front().done = true;
    sends.pop_front();
    receives.pop_front();
  }
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  return type == ncclUint8 ? 1 : type == ncclFloat32 ? 4 : 2;
}

std::size_t source_bytes(const Collective& call, int ranks) {
  return call.count * size_of(call.type) *
         (call.kind == Kind::reduce_scatter ? static_cast<std::size_t>(ranks) : 1);
}
std::size_t target_bytes(const Collective& call, int ranks) {
  return call.count * size_of(call.type) *
         (call.kind == Kind::all_gather ? static_cast<std::size_t>(ranks) : 1);
}

ncclResult_t error_of(const Member& member) {
  for (const int ranks : {0, member.clique->ranks}) {
    const auto failure = failures.find({member.rank, ranks});
    if (failure != failures.end()) return failure->second;
  }
  return ncclSuccess;
}

bool stands_still(const Member& member) {
  return lost || member.clique->broken || error_of(member) != ncclSuccess;
}

bool meet(const Member& member, std::uint64_t number, const Collective& call) {
  if (member.aborted) return true;
  Clique& clique = *member.clique;
  if (stands_still(member)) return false;
  Meeting& meeting = clique.meetings[number];
  if (meeting.done) return true;
  meeting.calls.resize(static_cast<std::size_t>(clique.ranks));
  meeting.calls[static_cast<std::size_t>(member.rank)] = call;
  const bool complete = std::ranges::all_of(
      meeting.calls, [&](const auto& one) { return one.has_value() && one->fits(call); });
  if (!complete) return false;
  perform(meeting);
  meeting.done = true;
  return true;
}

bool exchange(const Member& member, const std::vector<Transfer>& transfers, bool first) {
  if (member.aborted) return true;
  Clique& clique = *member.clique;
  if (stands_still(member)) return false;
  for (const Transfer& one : transfers) {
    if (!first) break;
    const auto pair =
        one.sends ? std::pair{member.rank, one.peer} : std::pair{one.peer, member.rank};
    (one.sends ? clique.sends : clique.receives)[pair].push_back(one);
    transfer(clique, pair);
  }
  return std::ranges::all_of(transfers, [](const Transfer& one) { return *one.done; });
}

}  // namespace nccl

void fail_nccl(int rank, int result, int ranks) {
  const Device::Lock device;
  nccl::failures[{rank, ranks}] = static_cast<ncclResult_t>(result);
}

void lose_nccl() {
  const Device::Lock device;
  nccl::lost = true;
}

void mend_nccl() {
  const Device::Lock device;
  nccl::lost = false;
  nccl::failures.clear();
}

}  // namespace cuda_emulation
