#include "runtime/engine/step/node_ranks.hpp"

namespace spillway::engine {

std::vector<Rank> ranks_of_node(const plan::Ranks& part) {
  std::vector<Rank> members;
  const std::uint32_t first = part.rank / part.secondary * part.secondary;
  for (std::uint32_t i = 0; i < part.secondary; ++i) members.emplace_back(first + i);
  return members;
}

}  // namespace spillway::engine
