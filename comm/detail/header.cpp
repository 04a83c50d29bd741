#include "comm/detail/header.hpp"

#include <fmt/format.h>

namespace spillway::comm::detail {
namespace {

std::string description(Rank rank, const Header& header) {
  const std::string group =
      header.group == 0 ? "" : fmt::format(" (the ranks of subgroup {:08x})", header.group);
  std::string text = fmt::format("rank {} of {}{} called {} of {} bytes", rank.value(),
                                 header.ranks, group, name_of(header.operation), header.bytes);
  if (header.number != 0) {
    text += fmt::format(" (collective {}, root {}, {} to {}", header.number, header.root,
                        name_of(header.types.addend), name_of(header.types.result));
    // Device memory moves in one piece.
    if (header.message_bytes != 0)
      text += fmt::format(", messages of {} bytes", header.message_bytes);
    text += ')';
  }
  return text;
}

}  // namespace

std::string disagreement(Rank rank, const Header& header, Rank other, const Header& of_other) {
  return fmt::format("the ranks disagree: {}; {}", description(rank, header),
                     description(other, of_other));
}

}  // namespace spillway::comm::detail
