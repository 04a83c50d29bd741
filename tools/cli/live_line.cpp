#include "tools/cli/live_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "tools/cli/plan_text.hpp"

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
std::string waits(const engine::StepResult& result, const engine::Exposed& exposed,
                  config::DeviceKind device) {
  std::string text;
  for (std::size_t lane = 0; lane < exposed.size(); ++lane) {
    const double share = result.seconds > 0 ? exposed[lane] / result.seconds : 0;
    if (share < 0.01) continue;
    text +=
        fmt::format(" {} +{:.0f}%", shown_name(static_cast<plan::Lane>(lane), device), share * 100);
  }
  return text.empty() ? std::string(" nothing exposed") : text;
}

}  // namespace

void LiveLine::start(const engine::TrainPlan& plan) {
  device_ = plan.plan.device();
  first_step_ = plan.first_step;
  steps_ = plan.steps;
  shares_.emplace(plan);
  begin_ = Clock::now();
}

void LiveLine::step(const engine::StepResult& result, const engine::StepUse& use) {
  seconds_.add(result.seconds);
  const auto now = Clock::now();
  const bool last = result.step == steps_;
  const bool due = now - last_shown_ >= (line_.on_terminal() ? kTerminalInterval : kLogInterval);
  if (!due && !last && result.step != first_step_ && !line_.resized()) return;
  last_shown_ = now;
  const double elapsed = std::chrono::duration<double>(now - begin_).count();
  const auto done = static_cast<double>(result.step - first_step_ + 1);
  const double left = elapsed / done * static_cast<double>(steps_ - result.step);
  const double share = static_cast<double>(result.step) / static_cast<double>(steps_);
  std::vector<StatusField> fields{
      {fmt::format("step {}/{}", result.step, steps_), 0},
      {fmt::format("[{}]", bar(share)), 6},
      {fmt::format("loss {:.4f}", result.loss), 2},
      {shown_rate(static_cast<double>(result.tokens) / seconds_.value()), 4},
      {fmt::format("left {}", duration(left)), 3},
      {"| " + shares_->text(seconds_.value()), 5},
      {fmt::format("| device {} of {}", format_bytes(use.device.high_water),
                   format_bytes(use.device.capacity)),
       7},
      {fmt::format("host {}", format_bytes(use.pinned.high_water)), 8},
      {fmt::format("|{}", waits(result, use.exposed, device_)), 9}};
  if (result.skipped) fields.push_back({"SKIPPED", 1});
  line_.show(fields);
}

}  // namespace spillway::cli
