// The two transcendental functions of a schedule, with the same bits on every machine. The C
// library's cos and log differ in their last bit between versions and processors (they pick FMA
// variants at run time), and a learning rate is part of a run's bits. Pure; any thread.
#pragma once

namespace spillway::config::detail {

/// Returns cos(pi x) for x in [0, 1], within 4e-16; exactly 1, 0 and -1 at 0, 1/2 and 1.
[[nodiscard]] double cos_pi(double x);
/// Returns ln(x) for x >= 1, within 4e-16 of the result; exactly 0 at 1.
[[nodiscard]] double natural_log(double x);

}  // namespace spillway::config::detail
