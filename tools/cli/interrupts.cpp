#include "tools/cli/interrupts.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <limits>
#include <string_view>

#include "tools/cli/console.hpp"
#include "tools/cli/status_line.hpp"

namespace spillway::cli {
namespace {

constexpr std::uint64_t kBeforeSteps = 0;
constexpr std::uint64_t kSaving = std::numeric_limits<std::uint64_t>::max();

// A signal handler can reach nothing else.
std::atomic<int> requests{0};
std::atomic<std::uint64_t> current_step{kBeforeSteps};
std::atomic<bool> on_terminal{false};
std::atomic<std::int64_t> first_hangup{0};  // in milliseconds of the clock; 0: there was none
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "a handler must not wait");

/// A terminal that closes hangs up more than once: its shell does, and then the system.
constexpr std::int64_t kOneHangupMs = 2000;

/// Text put together without the heap.
class SignalText {
 public:
  void add(std::string_view text) {
    for (const char c : text.substr(0, text_.size() - size_)) text_[size_++] = c;
  }
  void add(std::uint64_t number) {
    std::array<char, std::numeric_limits<std::uint64_t>::digits10 + 1> digits{};
    std::size_t first = digits.size();
    do {
      digits[--first] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number > 0);
    add(std::string_view(digits.data() + first, digits.size() - first));
  }
  [[nodiscard]] std::string_view text() const { return {text_.data(), size_}; }

 private:
  std::array<char, 160> text_{};
  std::size_t size_ = 0;
};

void acknowledge() {
  constexpr std::string_view kAgain = "again to stop now";
  SignalText first;
  const std::uint64_t step = current_step.load(std::memory_order_relaxed);
  if (step == kBeforeSteps) {
    first.add("stopping before the first step");
  } else if (step == kSaving) {
    first.add("saving");
  } else {
    first.add("finishing step ");
    first.add(step);
    first.add(", then saving");
  }
  SignalText line;
  const bool terminal = on_terminal.load(std::memory_order_relaxed);
  if (terminal) line.add("\r\x1b[2K");
  line.add(first.text());
  const bool narrow =
      terminal && first.text().size() + 2 + kAgain.size() >= terminal_columns(STDERR_FILENO);
  line.add(narrow ? ";\n" : "; ");
  line.add(kAgain);
  line.add("\n");
  tell_text(line.text());
}

std::int64_t now_ms() {
  struct timespec now {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

/// Whether this hang-up is another than the first one.
bool hangs_up_again() {
  std::int64_t first = 0;
  const std::int64_t now = now_ms();
  return !first_hangup.compare_exchange_strong(first, now) && now - first >= kOneHangupMs;
}

void on_signal(int signal) {
  const int saved = errno;
  const bool again = signal != SIGHUP || hangs_up_again();
  if (requests.fetch_add(1) == 0) {
    acknowledge();
  } else if (again) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);  // delivered when this handler returns
  }
  errno = saved;
}

void handle(int signal) {
  struct sigaction before {};
  ::sigaction(signal, nullptr, &before);
  if (signal == SIGHUP && before.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

Interrupts::Interrupts() {
  on_terminal = is_terminal(STDERR_FILENO);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) handle(signal);
}

const std::atomic<int>& Interrupts::count() const { return requests; }
void Interrupts::in_step(std::uint64_t step) { current_step = step; }
void Interrupts::saving() { current_step = kSaving; }

}  // namespace spillway::cli
