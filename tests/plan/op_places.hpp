// Where an op may find and leave its values: the part of op_meaning.hpp that tells of buffers.
#pragma once

#include <string>
#include <vector>

#include "tests/plan/op_meaning.hpp"

namespace spillway::plan {

/// Returns nothing, or why an access of an op is in a tier that its lane does not reach, is of
/// other buffers than its tile's or block's, or lies where the placement does not say. `tiles` are
/// those of the run.
[[nodiscard]] std::string find_wrong_place(const Op& op, const Access& access, const RunOf& run,
                                           const std::vector<Tile>& tiles);

}  // namespace spillway::plan
