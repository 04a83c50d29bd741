// schedule_print STEPS < config.json: the learning rate of every update, a line each, and behind it
// the momentum where the schedule gives one. schedule_print scale PATTERN < config.json: the loss
// scale after every step of the pattern (+ finite, x overflow), "stop" where the run would end. For
// the peer tests; it is not installed.
#include <fmt/format.h>

#include <iostream>
#include <iterator>
#include <string>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/config/schedule.hpp"

namespace {

using namespace spillway::config;

void print_rates(const TrainOptions& options, std::uint64_t steps) {
  const ScheduleOptions schedule = resolve_schedule(options.schedule, steps);
  for (std::uint64_t t = 1; t <= steps; ++t) {
    const auto momentum = first_momentum(schedule, t);
    fmt::print("{}{}\n", learning_rate(schedule, t),
               momentum ? fmt::format(" {}", *momentum) : std::string());
  }
}

void print_scales(const LossScaleOptions& options, std::string_view pattern) {
  LossScaleState state = initial_loss_scale(options, true);
  for (const char step : pattern) {
    if (step != '+' && is_at_minimum(options, state)) {
      fmt::print("stop\n");
      return;
    }
    state = next_loss_scale(options, state, step == '+');
    fmt::print("{}\n", state.scale);
  }
}

}  // namespace

int main(int count, char** arguments) {
  try {
    const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    const TrainOptions options = parse_train_config(text, "stdin").options;
    validate(options);
    if (count == 3 && std::string_view(arguments[1]) == "scale") {
      print_scales(options.loss_scale, arguments[2]);
    } else if (count == 2) {
      print_rates(options, std::stoull(arguments[1]));
    } else {
      return 2;
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
