#include "tools/python/bindings/interpreter.hpp"

#include <chrono>
#include <thread>

#include "runtime/base/error.hpp"

namespace spillway::python {
namespace {

namespace nb = nanobind;

// Both are guarded by the interpreter's lock.
bool ending = false;
int under_way = 0;

void wait_for_calls() {
  ending = true;
  while (under_way > 0) {
    const nb::gil_scoped_release unlocked;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

Unlocked::Unlocked() {
  check(!ending, ErrorCode::not_supported,
        "the interpreter is ending; join the threads that train before the program's last line");
  ++under_way;
  state_ = PyEval_SaveThread();
}

Unlocked::~Unlocked() {
  PyEval_RestoreThread(state_);
  --under_way;
}

bool is_ending() { return ending; }

void guard_exit() {
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&wait_for_calls));
}

}  // namespace spillway::python
