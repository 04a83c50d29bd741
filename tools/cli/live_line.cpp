#include "tools/cli/live_line.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace spillway::cli {
namespace {

constexpr std::chrono::milliseconds kTerminalInterval{100};
constexpr std::chrono::seconds kLogInterval{5};
constexpr std::size_t kBarWidth = 20;

std::string bar(double share) {
  const auto filled = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * kBarWidth);
  return std::string(filled, '=') + std::string(kBarWidth - filled, '.');
}

std::string duration(double seconds) {
  const auto s = static_cast<std::uint64_t>(std::max(seconds, 0.0));
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  if (s >= 60) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}s", s);
}

/// Lanes that the step waited for while the device idled, largest first would jump: fixed order.
std::string waits(const engine::StepResult& result, const engine::Exposed& exposed) {
  std::string text;
  for (std::size_t lane = 0; lane < exposed.size(); ++lane) {
    const double share = result.seconds > 0 ? exposed[lane] / result.seconds : 0;
    if (share < 0.01) continue;
    text += fmt::format(" {} +{:.0f}%", plan::name_of(static_cast<plan::Lane>(lane)), share * 100);
  }
  return text.empty() ? std::string(" nothing exposed") : text;
}

}  // namespace

LiveLine::LiveLine() : terminal_(::isatty(STDERR_FILENO) == 1) {}

LiveLine::~LiveLine() {
  if (open_) std::fputc('\n', stderr);
}

void LiveLine::start(std::uint64_t first_step, std::uint64_t steps) {
  first_step_ = first_step;
  steps_ = steps;
  begin_ = Clock::now();
}

void LiveLine::step(const engine::StepResult& result, const engine::Exposed& exposed,
                    const engine::Trainer& trainer) {
  const auto now = Clock::now();
  const bool last = result.step == steps_;
  const bool due =
      terminal_ ? now - last_shown_ >= kTerminalInterval : now - last_shown_ >= kLogInterval;
  if (!due && !last && result.step != first_step_) return;
  last_shown_ = now;
  const double elapsed = std::chrono::duration<double>(now - begin_).count();
  const auto done = static_cast<double>(result.step - first_step_ + 1);
  const double speed = done * static_cast<double>(result.tokens) / elapsed;
  const double left = elapsed / done * static_cast<double>(steps_ - result.step);
  const auto device = trainer.backend().usage(offload::MemoryKind::device);
  const auto host = trainer.backend().usage(offload::MemoryKind::pinned);
  show(fmt::format(
      "step {}/{} [{}] loss {:.4f} {:.0f} tok/s left {} | device {}/{} host {} |{}{}", result.step,
      steps_, bar(static_cast<double>(result.step) / static_cast<double>(steps_)), result.loss,
      speed, duration(left), format_bytes(device.high_water), format_bytes(device.capacity),
      format_bytes(host.high_water), waits(result, exposed), result.skipped ? " SKIPPED" : ""));
}

void LiveLine::show(const std::string& text) {
  if (terminal_) {
    fmt::print(stderr, "\r\x1b[2K{}", text);
    open_ = true;
  } else {
    fmt::print(stderr, "{}\n", text);
  }
  std::fflush(stderr);
}

void LiveLine::note(const std::string& text) {
  if (open_) fmt::print(stderr, "\r\x1b[2K");
  open_ = false;
  fmt::print(stderr, "{}\n", text);
}

}  // namespace spillway::cli
