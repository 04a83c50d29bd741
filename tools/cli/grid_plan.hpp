// `spillway plan --auto`: the grids of data, tensor and pipeline parallel ranks for a model on a
// described machine, in order. All of it is on paper. Control thread only.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/plan/grid/rank_grids.hpp"
#include "tools/cli/plan_making.hpp"

namespace spillway::cli {

struct GridRequest {
  PlanRequest plan;
  std::uint64_t windows = 0;  ///< of a step, of all ranks; 0: as if every rank were a replica
  bool across = false;        ///< tensor groups may have ranks of several machines
};

struct MadeGrids {
  std::string machine;
  std::string basis;
  std::uint32_t ranks = 1;
  std::uint64_t windows = 0;
  std::uint32_t context = 0;
  std::uint32_t micro_batch = 1;
  double model_flops = 0;  ///< of a step
  double peak_flops = 0;   ///< of each GPU by its data sheet; 0: not known
  plan::GridWork work;
  plan::GridMachine rates;
  plan::GridRanking ranking;

  [[nodiscard]] double mfu(const plan::RankedGrid& grid) const;
};

/// Throws `Error{does_not_fit}` if no grid fits, which names what needs least and remedies.
[[nodiscard]] MadeGrids make_grids(const GridRequest& request, const Note& note);

[[nodiscard]] std::string to_text(const MadeGrids& made);
[[nodiscard]] nlohmann::ordered_json to_json(const MadeGrids& made);

}  // namespace spillway::cli
