#include "runtime/engine/step/node_ranks.hpp"

#include <vector>

namespace spillway::engine {

std::unique_ptr<comm::Communicator> node_of(comm::Communicator* ranks, const plan::Ranks& part) {
  if (part.secondary == 1) return nullptr;
  std::vector<Rank> members;
  const std::uint32_t first = part.rank / part.secondary * part.secondary;
  for (std::uint32_t i = 0; i < part.secondary; ++i) members.emplace_back(first + i);
  return ranks->subgroup(members);
}

}  // namespace spillway::engine
