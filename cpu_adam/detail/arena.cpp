// oneTBB is not built for ThreadSanitizer, which would take the fields of a task that moves between
// threads for races. So this file is compiled without it, and WorkerPool, which is not, orders the
// threads by atomics of its own that the sanitizer understands.
#include "cpu_adam/detail/arena.hpp"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>

namespace spillway::cpu_adam::detail {
namespace {

using oneapi::tbb::global_control;

// oneTBB's default is the number of CPUs; the smallest live control decides once there is one.
std::size_t thread_limit(std::size_t threads) {
  return std::max(threads, global_control::active_value(global_control::max_allowed_parallelism));
}

}  // namespace

class Arena::Implementation {
 public:
  explicit Implementation(std::size_t threads)
      : limit_(global_control::max_allowed_parallelism, thread_limit(threads)),
        arena_(static_cast<int>(threads), 1) {}

  void enter(void (*function)(void*), void* context) {
    arena_.execute([function, context] { function(context); });
  }

 private:
  global_control limit_;
  oneapi::tbb::task_arena arena_;
};

Arena::Arena(std::size_t threads) : implementation_(std::make_unique<Implementation>(threads)) {}
Arena::~Arena() = default;

void Arena::enter(void (*function)(void*), void* context) {
  implementation_->enter(function, context);
}

void Arena::for_each_index(std::size_t count, void (*function)(void*, std::size_t), void* context) {
  oneapi::tbb::parallel_for(
      std::size_t{0}, count, [function, context](std::size_t index) { function(context, index); },
      oneapi::tbb::static_partitioner{});
}

}  // namespace spillway::cpu_adam::detail
