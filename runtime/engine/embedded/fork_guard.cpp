#include "runtime/engine/embedded/fork_guard.hpp"

#include "runtime/base/error.hpp"

namespace spillway::engine {

void ForkGuard::check() const {
  spillway::check(!is_child(), ErrorCode::not_supported,
                  "this process was forked from the one that made the trainer, and lacks its "
                  "threads; make the trainer after the fork");
}

}  // namespace spillway::engine
