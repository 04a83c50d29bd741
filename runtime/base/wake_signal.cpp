#include "runtime/base/wake_signal.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "runtime/base/error.hpp"

namespace spillway {

WakeSignal::WakeSignal() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_ < 0) throw_errno(errno, "eventfd");
}

WakeSignal::~WakeSignal() { ::close(descriptor_); }

void WakeSignal::notify() noexcept {
  const std::uint64_t one = 1;
  // The only possible failure is a full counter, which is a pending notification already.
  [[maybe_unused]] const ssize_t written = ::write(descriptor_, &one, sizeof one);
}

void WakeSignal::wait_for(std::chrono::microseconds limit) {
  pollfd entry{.fd = descriptor_, .events = POLLIN, .revents = 0};
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec timeout{
      .tv_sec = static_cast<time_t>(seconds.count()),
      .tv_nsec = static_cast<long>(std::chrono::nanoseconds(limit - seconds).count())};
  if (::ppoll(&entry, 1, &timeout, nullptr) <= 0) return;
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(descriptor_, &count, sizeof count);
}

}  // namespace spillway
