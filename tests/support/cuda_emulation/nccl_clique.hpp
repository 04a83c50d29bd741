// The ranks of the emulated NCCL and what moves between them. Everything is called with the
// device's lock held.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace cuda_emulation::nccl {

enum class Kind { all_gather, reduce_scatter, all_reduce, broadcast, reduce };

struct Collective {
  Kind kind;
  std::size_t count;
  ncclDataType_t type;
  int root;
  const void* source;
  void* target;

  [[nodiscard]] bool fits(const Collective& other) const {
    return kind == other.kind && count == other.count && type == other.type && root == other.root;
  }
};

struct Meeting {
  std::vector<std::optional<Collective>> calls;  // by rank
  bool done = false;
};

/// One end of a send; the other end has the same size.
struct Transfer {
  std::byte* address;
  std::size_t size;
  int peer;
  bool sends;
  std::shared_ptr<bool> done = std::make_shared<bool>(false);
};

struct Clique {
  explicit Clique(int count) : ranks(count) {}

  int ranks;
  std::set<int> joined;
  bool broken = false;  // a rank has left without a word: nothing moves any more
  std::map<std::uint64_t, Meeting> meetings;
  std::map<std::pair<int, int>, std::deque<Transfer>> sends;     // from, to
  std::map<std::pair<int, int>, std::deque<Transfer>> receives;  // from, to
};

struct Launch {
  cudaStream_t stream;
  std::function<bool()> ready;
};

/// A rank of a clique.
struct Member {
  std::shared_ptr<Clique> clique;
  int rank;
  int device;  ///< that was current when the rank joined
  std::thread::id rank_of_job = std::this_thread::get_id();  ///< its communicators share a thread
  std::set<cudaStream_t> streams{};                          ///< that it has put something on
  bool aborted = false;
  bool finalized = false;
  int polls = 0;  ///< so often the rank asks for errors before its launches are on their streams
  std::uint64_t collectives = 0;
  std::vector<Launch> launches{};
};

[[nodiscard]] std::size_t size_of(ncclDataType_t type);
[[nodiscard]] std::size_t source_bytes(const Collective& call, int ranks);
[[nodiscard]] std::size_t target_bytes(const Collective& call, int ranks);

/// What NCCL tells the rank of errors; success unless a test wants another.
[[nodiscard]] ncclResult_t error_of(const Member& member);

/// Whether what the rank has started never ends.
[[nodiscard]] bool stands_still(const Member& member);

/// Notes that the rank has come to the collective, and returns whether its part in it is over.
[[nodiscard]] bool meet(const Member& member, std::uint64_t number, const Collective& call);
/// The same of the sends and receives of a group, which are noted the first time.
[[nodiscard]] bool exchange(const Member& member, const std::vector<Transfer>& transfers,
                            bool first);

}  // namespace cuda_emulation::nccl
