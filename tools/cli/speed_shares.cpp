#include "tools/cli/speed_shares.hpp"

#include <fmt/format.h>

#include "tools/bench/peak_flops.hpp"

namespace spillway::cli {

SpeedShares::SpeedShares(const engine::TrainPlan& plan)
    : planned_(plan.plan.prediction.step_seconds) {
  const plan::Workload& workload = plan.plan.workload;
  const auto peak = bench::peak_flops(plan.device_name, plan.plan.options.compute);
  if (!peak) return;
  const double flops = plan.flops_per_token * static_cast<double>(plan::tokens_of_step(workload));
  at_peak_ = flops / workload.grid().ranks() / *peak;
}

std::string SpeedShares::text(double seconds) const {
  std::string of_plan = fmt::format("{:.0f}% of plan", 100 * planned_ / seconds);
  if (!at_peak_) return of_plan;
  return of_plan + fmt::format(", {:.0f}% of peak", 100 * *at_peak_ / seconds);
}

}  // namespace spillway::cli
