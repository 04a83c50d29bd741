// Counts what this program, but none of its shared libraries, asks of operator new.
#pragma once

namespace spillway::model {

/// One at a time. Counts from construction to destruction, on all threads.
class AllocationCounter {
 public:
  AllocationCounter();
  ~AllocationCounter();
  AllocationCounter(const AllocationCounter&) = delete;
  AllocationCounter& operator=(const AllocationCounter&) = delete;

  /// False under a sanitizer, which replaces operator new itself.
  static bool works();
  [[nodiscard]] int count() const;
};

}  // namespace spillway::model
