// What the interpreter's lock and its end ask of calls into the engine.
#pragma once

#include <nanobind/nanobind.h>

namespace spillway::python {

/// Lets go of the interpreter's lock while it lives, in a call that another thread may outlast: a
/// thread that comes back to an interpreter that has ended would end the process. So the end of the
/// interpreter waits for these calls, and no new one begins. The lock is held when it is made and
/// destroyed.
class Unlocked {
 public:
  /// Throws `Error{not_supported}` while the interpreter ends.
  Unlocked();
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked();

 private:
  PyThreadState* state_;
};

/// Whether the interpreter ends. The lock must be held.
[[nodiscard]] bool is_ending();
/// Makes the end of the interpreter wait for what is under way.
void guard_exit();

}  // namespace spillway::python
