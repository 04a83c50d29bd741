// Counter of operator new in a test program and every library but oneDNN; can let one call fail.
// Linking `spillway_test_support` replaces operator new and delete of the program.
#pragma once

#include "tests/support/failing_turn.hpp"

namespace spillway::test_support {

/// One at a time. Counts from construction to destruction, on all threads.
class AllocationCounter {
 public:
  AllocationCounter();
  ~AllocationCounter();
  AllocationCounter(const AllocationCounter&) = delete;
  AllocationCounter& operator=(const AllocationCounter&) = delete;

  /// False under a sanitizer, which replaces operator new itself.
  [[nodiscard]] static bool works();
  [[nodiscard]] int allocations() const;
  /// Calls of open and openat from this program and the libraries that it links.
  [[nodiscard]] int opens() const;
};

/// Makes one operator new throw, where AllocationCounter works.
extern FailingTurn allocation_turn;
using FailingAllocation = Failing<allocation_turn>;

}  // namespace spillway::test_support
