#include "tools/cli/wait_policy.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace spillway::cli {
namespace {

constexpr const char* kSpins = "GOMP_SPINCOUNT";
constexpr const char* kPolicy = "OMP_WAIT_POLICY";
/// Mark for the restarted program: it has been restarted, and `kSpins` is not the user's setting.
constexpr const char* kBounded = "SPILLWAY_WAITING_BOUNDED";
/// Tens of microseconds: more than the gap between two parallel regions of a step, so that idle
/// cores lose nothing, and far less than the turn of another process on a busy core. The runtime's
/// own 300,000 hold a core for milliseconds at every barrier that a preempted thread is late for.
constexpr const char* kSpinCount = "1000";

/// The processes that this one starts choose for themselves.
void forget() {
  ::unsetenv(kBounded);
  ::unsetenv(kSpins);
}

}  // namespace

void bound_waiting(char** arguments) {
  if (std::getenv(kBounded) != nullptr) {
    forget();
    return;
  }
  if (std::getenv(kPolicy) != nullptr || std::getenv(kSpins) != nullptr) return;
  // Not /proc/self/exe itself, by which the process would then be named.
  std::error_code unreadable;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", unreadable);
  if (unreadable) return;
  if (::setenv(kSpins, kSpinCount, 0) == 0 && ::setenv(kBounded, "1", 0) == 0) {
    ::execv(program.c_str(), arguments);
  }
  forget();
}

}  // namespace spillway::cli
