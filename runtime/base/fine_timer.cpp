#include "runtime/base/fine_timer.hpp"

#include <sys/prctl.h>

namespace spillway {
namespace {

constexpr int kFineNs = 1000;

void set_slack(int nanoseconds) noexcept {
  ::prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(nanoseconds), 0UL, 0UL, 0UL);
}

}  // namespace

FineTimer::FineTimer() noexcept : slack_before_ns_(::prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL)) {
  if (slack_before_ns_ > kFineNs) set_slack(kFineNs);
}

FineTimer::~FineTimer() {
  if (slack_before_ns_ > kFineNs) set_slack(slack_before_ns_);
}

}  // namespace spillway
