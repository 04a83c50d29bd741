#include "comm/baselines/staleness.hpp"

#include "runtime/base/error.hpp"

namespace spillway::comm {

Staleness::Staleness(std::size_t workers, std::uint32_t bound) : workers_(workers), bound_(bound) {
  SPILLWAY_ASSERT(std::uint64_t{bound} + 1 >= workers);
}

void Staleness::begin(std::uint32_t pushes) {
  SPILLWAY_ASSERT(is_over());
  for (Worker& worker : workers_) worker = {.pulled = applied_, .left = pushes};
  left_of_all_ = std::uint64_t{pushes} * workers_.size();
}

// With bound 2 and three workers that have pulled at 0, worker 0 may push once and not twice: of
// the other two, one would be the second after two pushes, and so have a staleness of 3.
bool Staleness::may_push(std::size_t worker) const {
  if (workers_[worker].left == 0) return false;
  for (std::size_t other = 0; other < workers_.size(); ++other) {
    if (other == worker || workers_[other].left == 0) continue;
    std::uint64_t before_it = 0;
    for (std::size_t third = 0; third < workers_.size(); ++third) {
      if (third == worker || third == other || workers_[third].left == 0) continue;
      const bool first = workers_[third].pulled < workers_[other].pulled ||
                         (workers_[third].pulled == workers_[other].pulled && third < other);
      before_it += first ? 1 : 0;
    }
    if (applied_ + 1 + before_it - workers_[other].pulled > bound_) return false;
  }
  return true;
}

std::uint32_t Staleness::push(std::size_t worker) {
  Worker& pushing = workers_[worker];
  const std::uint64_t staleness = applied_ - pushing.pulled;
  SPILLWAY_ASSERT(pushing.left > 0 && staleness <= bound_);
  pushing.pulled = ++applied_;
  --pushing.left;
  --left_of_all_;
  return static_cast<std::uint32_t>(staleness);
}

}  // namespace spillway::comm
