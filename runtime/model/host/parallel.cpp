#include "runtime/model/host/parallel.hpp"

#include <omp.h>

#include <cstdint>

#include "runtime/model/host/seats.hpp"

#if defined(__SANITIZE_THREAD__)
#define SPILLWAY_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SPILLWAY_TSAN 1
#endif
#endif

#ifdef SPILLWAY_TSAN
// The OpenMP runtime is not instrumented: tell the sanitizer about the fork and the join.
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace spillway::model::host {
namespace {

void publish([[maybe_unused]] void* address) {
#ifdef SPILLWAY_TSAN
  __tsan_release(address);
#endif
}

void observe([[maybe_unused]] void* address) {
#ifdef SPILLWAY_TSAN
  __tsan_acquire(address);
#endif
}

/// Regions from one look at the seats to the next: some milliseconds.
constexpr std::uint32_t kSeatedRegions = 64;

struct Job {
  void (*function)(void*, int);
  void* context;
  int parts;
  Seats* seats;  ///< none: nobody looks
};

// Runs the team's threads, so that no compiler-made frame is shared outside the annotations.
__attribute__((no_sanitize("thread"))) void run_on_team(Job* job) {
#pragma omp parallel num_threads(job->parts) default(none) shared(job)
  {
    observe(job);
    if (job->seats != nullptr) job->seats->take_one();
    const int team = omp_get_num_threads();
    for (int part = omp_get_thread_num(); part < job->parts; part += team) {
      job->function(job->context, part);
    }
    publish(job);
  }
}

}  // namespace

TeamSize::TeamSize(int threads) : previous_(omp_get_max_threads()) { omp_set_num_threads(threads); }
TeamSize::~TeamSize() { omp_set_num_threads(previous_); }

int largest_team() { return omp_get_thread_limit(); }

void run_parts(int parts, void (*function)(void* context, int part), void* context) {
  if (parts == 1) {
    function(context, 0);
    return;
  }
  static thread_local std::uint32_t regions = 0;
  Seats seats;
  Job job{function, context, parts, regions++ % kSeatedRegions == 0 ? &seats : nullptr};
  publish(&job);
  run_on_team(&job);
  observe(&job);
}

}  // namespace spillway::model::host
