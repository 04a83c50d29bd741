// Interrupts: the signals that ask a training run to end, and what the user is told at once.
//
// SIGINT, SIGTERM and SIGHUP ask to finish the step and save; another one ends the process. A
// terminal that closes sends more than one SIGHUP: those of two seconds are one. Whoever started
// the process with SIGHUP ignored (nohup) is obeyed. One object at a time; the handlers stay
// installed.
#pragma once

#include <atomic>
#include <cstdint>

namespace spillway::cli {

class Interrupts {
 public:
  Interrupts();

  /// Returns how often the run was asked to end.
  [[nodiscard]] const std::atomic<int>& count() const;
  /// Takes the step that runs, from 1; what is said names it.
  void in_step(std::uint64_t step);
  /// Takes note that every step is done: what is left is to save.
  void saving();
};

}  // namespace spillway::cli
