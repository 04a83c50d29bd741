// schedule_print STEPS < config.json: the learning rate of every update, a line each, for the peer
// test. A tool of the tests; it is not installed.
#include <fmt/format.h>

#include <iostream>
#include <iterator>
#include <string>

#include "runtime/base/error.hpp"
#include "runtime/engine/schedule.hpp"

int main(int count, char** arguments) {
  if (count != 2) return 2;
  try {
    const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    const std::uint64_t steps = std::stoull(arguments[1]);
    const spillway::engine::ScheduleOptions schedule = spillway::engine::resolve_schedule(
        spillway::engine::parse_train_config(text, "stdin").options.schedule, steps);
    for (std::uint64_t t = 1; t <= steps; ++t) {
      fmt::print("{}\n", spillway::engine::learning_rate(schedule, t));
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
