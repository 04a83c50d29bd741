// The schedules of deepspeed.runtime.lr_schedules as DeepSpeed's engine runs them. Pure; any
// thread.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/config/schedule.hpp"

namespace spillway::config::detail {

[[nodiscard]] bool is_deepspeed(ScheduleKind kind);
/// Returns the rate of update `t`, from 1. The scheduler steps after each update that is applied:
/// the first has the rate that its constructor sets, the t-th that of last_batch_iteration + t - 1.
[[nodiscard]] double deepspeed_rate(const ScheduleOptions& options, std::uint64_t t);
/// Returns the first momentum that OneCycle gives update `t`; nothing where it leaves the
/// optimizer's.
[[nodiscard]] std::optional<double> one_cycle_momentum(const ScheduleOptions& options,
                                                       std::uint64_t t);

}  // namespace spillway::config::detail
