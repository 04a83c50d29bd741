// Account: how much of one kind of memory a backend may give and has given. Every backend counts
// and refuses through it, in the same words.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <string_view>

#include "offload/device_backend.hpp"
#include "runtime/base/mutex.hpp"

namespace spillway::offload::detail {

/// Why the system refused memory, and what helps.
struct Refusal {
  std::string_view reason;
  std::string_view remedy;
  int native;
};

class Account {
 public:
  Account(MemoryKind kind, Bytes capacity);

  /// Takes `size` as used and returns its number, from 0 on. Throws `Error{out_of_memory}` where
  /// the limit does not allow it.
  std::uint32_t take(Bytes size) SPILLWAY_EXCLUDES(mutex_);
  void give_back(Bytes size) noexcept SPILLWAY_EXCLUDES(mutex_);
  /// Gives `size` back and throws `Error{out_of_memory}`: the system refused what the limit
  /// allowed.
  [[noreturn]] void refuse(Bytes size, const Refusal& refusal);

  [[nodiscard]] MemoryUsage usage() const SPILLWAY_EXCLUDES(mutex_);

 private:
  const MemoryKind kind_;
  mutable Mutex mutex_;
  MemoryUsage usage_ SPILLWAY_GUARDED_BY(mutex_);
  std::uint32_t number_ SPILLWAY_GUARDED_BY(mutex_) = 0;
};

}  // namespace spillway::offload::detail
