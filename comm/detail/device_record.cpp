#include "comm/detail/device_record.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.hpp"

namespace spillway::comm::detail {
namespace {

using Kind = DeviceRecord::Kind;

/// Throws if ranks have waited too long for each other.
void find_late_rank(std::span<const DeviceRecord> records, const Members& members) {
  const auto rank_of = [&](auto record) {
    return members.in_job(Rank{static_cast<std::uint32_t>(record - records.begin())}).value();
  };
  const auto has = [&](Kind kind) { return std::ranges::find(records, kind, &DeviceRecord::kind); };
  const auto late = has(Kind::stuck_before);
  if (late != records.end()) {
    throw Error(ErrorCode::device_error,
                fmt::format("rank {} is late in {}: its device has not come to it, because what "
                            "the stream held before has not ended",
                            rank_of(late), description(late->header)));
  }
  const auto stuck = has(Kind::stuck_within);
  if (stuck == records.end()) return;
  const auto elsewhere = has(Kind::started);
  if (elsewhere != records.end()) {
    throw Error(ErrorCode::device_error,
                fmt::format("rank {} waits in {}, and rank {}, which has started {}, does not",
                            rank_of(stuck), description(stuck->header), rank_of(elsewhere),
                            description(elsewhere->header)));
  }
  throw Error(ErrorCode::device_error,
              fmt::format("rank {} waits in {}, and no rank is late: NCCL or the network between "
                          "the GPUs has stopped; NCCL_DEBUG=INFO in the environment says more",
                          rank_of(stuck), description(stuck->header)));
}

}  // namespace

DeviceRecord make_record(const Call& call, std::uint64_t number, const Members& members) {
  const bool transfer = is_between_two(call.operation);
  const std::size_t moved =
      call.operation == Operation::receive ? call.target.size() : call.source.size();
  return {.header = {.number = number,
                     .bytes = transfer ? moved : bytes_of_all(call, members.ranks()),
                     .ranks = members.ranks(),
                     .root = call.root.value(),
                     .group = members.tag(),
                     .operation = call.operation,
                     .types = call.types}};
}

void compare(std::span<const DeviceRecord> records, const Members& members) {
  find_late_rank(records, members);
  const Rank mine = members.rank();
  const Header& header = records[mine.value()].header;
  for (std::uint32_t rank = 0; rank < records.size(); ++rank) {
    if (records[rank].header == header) continue;
    throw Error(ErrorCode::invalid_argument,
                disagreement(members.in_job(mine), header, members.in_job(Rank{rank}),
                             records[rank].header));
  }
}

void compare_transfer(const Call& call, const Members& members, const DeviceRecord& theirs) {
  Header own = make_record(call, 0, members).header;
  Operation counterpart = Operation::exchange;
  if (call.operation == Operation::send) counterpart = Operation::receive;
  if (call.operation == Operation::receive) counterpart = Operation::send;
  if (call.operation == Operation::exchange) own.bytes = call.target.size();
  if (theirs.header.operation == counterpart && theirs.header.bytes == own.bytes) return;
  const Rank other = call.operation == Operation::send ? call.root : call.from;
  throw Error(ErrorCode::invalid_argument, disagreement(members.in_job(members.rank()), own,
                                                        members.in_job(other), theirs.header));
}

std::string description(const Header& header) {
  std::string name(name_of(header.operation));
  if (header.group != 0) name += fmt::format(" of subgroup {:08x}", header.group);
  if (header.number == 0) return fmt::format("{} ({} bytes)", name, header.bytes);
  return fmt::format("{} (collective {}, {} bytes)", name, header.number, header.bytes);
}

}  // namespace spillway::comm::detail
