// What a trainer's handle names: the parameters that the program registers and, from the start on,
// the engine's trainer. Owns both. Handles are numbers that are never used twice, so one that was
// destroyed is told from a living one.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "runtime/base/mutex.hpp"
#include "runtime/capi/detail/tensor.hpp"
#include "runtime/capi/spillway.h"
#include "runtime/engine/embedded_trainer.hpp"

namespace spillway::capi {

/// A parameter as the program has registered it.
struct Registered {
  std::string name;
  std::uint32_t group = 0;
  std::vector<std::int64_t> shape;
  std::uint64_t elements = 0;
  std::optional<std::uint32_t> unit{};      ///< with which it is streamed
  const std::byte* start_values = nullptr;  ///< the program's; null after the start
  std::byte* values = nullptr;              ///< the engine's, from the start on
  bool on_gpu = false;                      ///< where they are
  Mutex one_call;  ///< the engine takes one gradient or wait at a time for one parameter
};

class Session {
 public:
  /// Returns the engine's trainer. Throws `Error{invalid_argument}` before the start.
  [[nodiscard]] engine::EmbeddedTrainer& trainer() const;
  /// Throws `Error{invalid_argument}` before the start, or if there is no parameter of that number.
  [[nodiscard]] Registered& parameter(std::uint32_t index);
  [[nodiscard]] bool started() const { return trainer_ != nullptr; }
  void check_not_started() const;
  /// Makes the engine's trainer of what was registered.
  void start(engine::EmbeddedOptions options);
  /// Asks the engine's trainer where the values of parameters are.
  void find_values();

  std::vector<cpu_adam::AdamOptions> groups;
  std::deque<Registered> parameters;
  DType dtype = DType::fp32;  ///< of the first parameter, and so of all
  Mutex one_pass;             ///< the engine takes one call of a pass at a time
  std::vector<plan::MemoryItem> memory;

 private:
  friend class SessionUse;
  friend class SharedUse;
  friend class SoleUse;
  friend void close_session(spillway_trainer* handle);
  std::uint64_t uses_ = 0;   ///< calls under way; guarded by what guards all sessions
  Mutex sole_;               ///< held by the one call that is not for any thread
  std::shared_mutex calls_;  ///< shared by calls for any thread; guards all but uses_
  std::unique_ptr<engine::EmbeddedTrainer> trainer_;
};

/// Makes a session and returns its handle. Throws `Error{not_supported}` in a child of a process
/// that has made one.
[[nodiscard]] spillway_trainer* open_session();
/// Ends the session that `handle` names. Throws `Error{busy}` while a call uses it.
void close_session(spillway_trainer* handle);

/// Keeps a session from being closed while a call uses it.
class SessionUse {
 public:
  SessionUse(const SessionUse&) = delete;
  SessionUse& operator=(const SessionUse&) = delete;
  Session* operator->() const { return session_; }
  Session& operator*() const { return *session_; }

 protected:
  /// Throws `Error{invalid_argument}` if `handle` names no living session, and
  /// `Error{not_supported}` in a child of its process.
  explicit SessionUse(spillway_trainer* handle);
  ~SessionUse();
  Session* session_;
};

/// A use by a call that any thread may make. It waits for a sole use to end.
class SharedUse : public SessionUse {
 public:
  explicit SharedUse(spillway_trainer* handle) : SessionUse(handle), lock_(session_->calls_) {}

 private:
  std::shared_lock<std::shared_mutex> lock_;
};

/// A use by a call that one thread at a time makes. It waits for shared uses to end.
class SoleUse : public SessionUse {
 public:
  /// Also throws `Error{busy}` if there is another one.
  explicit SoleUse(spillway_trainer* handle);
  ~SoleUse();
};

}  // namespace spillway::capi
