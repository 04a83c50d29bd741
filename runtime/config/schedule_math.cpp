#include "runtime/config/detail/schedule_math.hpp"

#include <cmath>
#include <numbers>

namespace spillway::config::detail {
namespace {

/// sum of (-1)^k y^(2k + odd) / (2k + odd)!, for |y| <= pi / 4: below 1e-17 after 10 terms.
double alternating_series(double y, int odd) {
  double term = odd != 0 ? y : 1;
  double sum = term;
  for (int k = 1; k < 10; ++k) {
    const double n = 2 * k + odd;
    term = -term * y * y / (n * (n - 1));
    sum += term;
  }
  return sum;
}

}  // namespace

double cos_pi(double x) {
  if (x > 0.5) return -cos_pi(1 - x);
  if (x <= 0.25) return alternating_series(std::numbers::pi * x, 0);
  return alternating_series(std::numbers::pi * (0.5 - x), 1);
}

double natural_log(double x) {
  // x = 2^e f with f in [0.7, 1.4], and ln f = 2 artanh((f - 1) / (f + 1)).
  int exponent = 0;
  double fraction = std::frexp(x, &exponent);  // exact
  if (fraction < std::numbers::sqrt2 / 2) {
    fraction *= 2;
    --exponent;
  }
  const double z = (fraction - 1) / (fraction + 1);  // at most 0.172: 13 terms leave 1e-21
  double power = z;
  double sum = 0;
  for (int k = 0; k < 13; ++k) {
    sum += power / (2 * k + 1);
    power *= z * z;
  }
  return 2 * sum + exponent * std::numbers::ln2;
}

}  // namespace spillway::config::detail
