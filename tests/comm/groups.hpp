// The groups of ranks over which the contract of Communicator is tested. Each test program has its
// own: threads of one process, or the processes of mpirun.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace spillway::comm {

using Body = std::function<void(Communicator&)>;

/// Runs a body once per rank. The body's rank is one of this process, which has all of the ranks or
/// one of them.
struct Group {
  std::string name;
  std::uint32_t ranks;
  std::function<void(const Body&)> run;
};

inline void PrintTo(const Group& group, std::ostream* stream) { *stream << group.name; }

inline std::string name_of_group(const testing::TestParamInfo<Group>& group) {
  return group.param.name;
}

[[nodiscard]] std::vector<Group> groups();

/// Runs a body on the subgroup of `members` if `self` is among them.
inline void run_in_subgroup(Communicator& self, const std::vector<Rank>& members,
                            const Body& body) {
  if (std::ranges::find(members, self.rank()) != members.end()) body(*self.subgroup(members));
}

}  // namespace spillway::comm
