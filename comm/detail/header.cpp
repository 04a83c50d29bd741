#include "comm/detail/header.hpp"

#include <fmt/format.h>

namespace spillway::comm::detail {
namespace {

std::string description(Rank rank, const Header& header) {
  std::string text = fmt::format("rank {} of {} called {} of {} bytes", rank.value(), header.ranks,
                                 name_of(header.operation), header.bytes);
  if (header.number != 0) {
    text += fmt::format(" (collective {}, root {}, {} to {}, messages of {} bytes)", header.number,
                        header.root, name_of(header.types.addend), name_of(header.types.result),
                        header.message_bytes);
  }
  return text;
}

}  // namespace

std::string disagreement(Rank rank, const Header& header, Rank other, const Header& of_other) {
  return fmt::format("the ranks disagree: {}; {}", description(rank, header),
                     description(other, of_other));
}

}  // namespace spillway::comm::detail
