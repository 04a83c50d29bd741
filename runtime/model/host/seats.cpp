#include "runtime/model/host/seats.hpp"

namespace spillway::model::host {

void Seats::take_one() {
  const int here = ::sched_getcpu();
  if (here < 0 || here >= CPU_SETSIZE || take(static_cast<unsigned>(here))) return;
  cpu_set_t usable;
  if (::sched_getaffinity(0, sizeof usable, &usable) != 0) return;
  for (unsigned processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &usable) || !take(processor)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    ::sched_setaffinity(0, sizeof one, &one);
    ::sched_setaffinity(0, sizeof usable, &usable);
    return;
  }
}

bool Seats::take(unsigned processor) {
  const std::uint64_t bit = std::uint64_t{1} << (processor % 64);
  return (taken_[processor / 64].fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
}

}  // namespace spillway::model::host
