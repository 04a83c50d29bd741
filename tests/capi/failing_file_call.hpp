// Makes one call of the C library that works on files fail. Linking it replaces these calls for the
// program and for the libraries that it loads; what io_uring does is not among them.
#pragma once

#include <cstdint>

namespace spillway::capi_test {

/// One at a time.
class FailingFileCall {
 public:
  /// So many succeed before it, on any thread, of those that are watched. It fails with EIO.
  explicit FailingFileCall(std::int64_t successes);
  ~FailingFileCall();
  FailingFileCall(const FailingFileCall&) = delete;
  FailingFileCall& operator=(const FailingFileCall&) = delete;

  void watch(bool on);
  [[nodiscard]] bool has_failed() const;
};

}  // namespace spillway::capi_test
