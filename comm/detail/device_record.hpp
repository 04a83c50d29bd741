// DeviceRecord: what ranks tell each other, over host memory, of an operation on device memory. A
// library such as NCCL does not compare what ranks call, and does not know which of them is late.
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "comm/detail/header.hpp"
#include "comm/detail/members.hpp"

namespace spillway::comm::detail {

/// Sent as it lies in memory: the ranks run the same program.
struct DeviceRecord {
  enum class Kind : std::uint64_t {
    started,       ///< the operation has been put on a stream
    stuck_before,  ///< it took too long, and the stream has not even come to it
    stuck_within,  ///< it took too long
  };
  Header header{};
  Kind kind = Kind::started;
};

/// Returns a rank's record of `call`, collective `number` or, between two ranks, number 0.
[[nodiscard]] DeviceRecord make_record(const Call& call, std::uint64_t number,
                                       const Members& members);

/// Throws unless every rank has started what this one has. `records` are in the order of ranks. An
/// `Error{invalid_argument}` says where two disagree; an `Error{device_error}` names the rank that
/// the others wait for.
void compare(std::span<const DeviceRecord> records, const Members& members);

/// Throws `Error{invalid_argument}` unless `theirs`, of the other end of `call`, fits it.
void compare_transfer(const Call& call, const Members& members, const DeviceRecord& theirs);

/// Returns "all_reduce (collective 3, 1024 bytes)", with the subgroup if it is of one.
[[nodiscard]] std::string description(const Header& header);

}  // namespace spillway::comm::detail
