// Makes one call of the C library that works on files fail with EIO. Linking it replaces these
// calls for the program and for the libraries that it loads; what io_uring does is not among them.
#pragma once

#include "tests/support/failing_turn.hpp"

namespace spillway::test_support {

extern FailingTurn file_call_turn;
using FailingFileCall = Failing<file_call_turn>;

}  // namespace spillway::test_support
