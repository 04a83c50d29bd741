// Account: how much of one kind of memory a backend may give and has given. Every backend counts
// and refuses through it, in the same words.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <mutex>
#include <string_view>

#include "offload/device_backend.hpp"

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
  std::uint32_t take(Bytes size);
  void give_back(Bytes size) noexcept;
  /// Gives `size` back and throws `Error{out_of_memory}`: the system refused what the limit
  /// allowed.
  [[noreturn]] void refuse(Bytes size, const Refusal& refusal);

  [[nodiscard]] MemoryUsage usage() const;

 private:
  const MemoryKind kind_;
  mutable std::mutex mutex_;
  MemoryUsage usage_;         // guarded by mutex_
  std::uint32_t number_ = 0;  // guarded by mutex_
};

}  // namespace spillway::offload::detail
