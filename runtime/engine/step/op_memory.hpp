// OpMemory: the memory that an op may touch, which is what it declares. Ops take all that they read
// and write from here, so that a declaration cannot be forgotten.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/base/error.hpp"
#include "runtime/engine/step/memory.hpp"
#include "runtime/plan/step_plan.hpp"

namespace spillway::engine {

class OpMemory {
 public:
  OpMemory(const Memory& memory, std::span<const plan::Access> accesses)
      : memory_(memory), accesses_(accesses) {}

  /// Returns the buffer in which the op finds a value; asserts that it declares one.
  [[nodiscard]] plan::Buffer read(plan::ValueKind kind, std::uint32_t of = 0) const {
    return declared(kind, of, Use::reads);
  }
  /// Returns the buffer in which the op leaves a value; asserts likewise.
  [[nodiscard]] plan::Buffer write(plan::ValueKind kind, std::uint32_t of = 0) const {
    return declared(kind, of, Use::writes);
  }
  [[nodiscard]] bool reads(plan::ValueKind kind, std::uint32_t of = 0) const {
    return find(kind, of, Use::reads).has_value();
  }
  [[nodiscard]] bool writes(plan::ValueKind kind, std::uint32_t of = 0) const {
    return find(kind, of, Use::writes).has_value();
  }

  /// Returns a view of a declared buffer, or of its first `bytes` where the value is smaller;
  /// asserts that the op declares it.
  [[nodiscard]] offload::DeviceSpan<std::byte> device(const plan::Buffer& buffer,
                                                      Bytes bytes) const {
    return device(buffer).subspan(0, bytes.value());
  }
  [[nodiscard]] offload::DeviceSpan<std::byte> device(const plan::Buffer& buffer) const {
    check_declared(buffer);
    return memory_.device(buffer);
  }
  [[nodiscard]] std::span<std::byte> host(const plan::Buffer& buffer) const {
    check_declared(buffer);
    return memory_.host(buffer);
  }

  /// Returns the only buffer that a copy reads, or writes.
  [[nodiscard]] plan::Buffer source() const { return only(Use::reads); }
  [[nodiscard]] plan::Buffer target() const { return only(Use::writes); }
  /// Returns the only buffer of a message between stages.
  [[nodiscard]] plan::Buffer message() const {
    SPILLWAY_ASSERT(accesses_.size() == 1);
    return accesses_[0].buffer;
  }

 private:
  enum class Use : std::uint8_t { reads, writes };

  [[nodiscard]] std::optional<plan::Buffer> find(plan::ValueKind kind, std::uint32_t of,
                                                 Use use) const {
    for (const plan::Access& access : accesses_) {
      const plan::Value& value = access.value;
      if (access.writes != (use == Use::writes)) continue;
      if (value.kind == kind && value.of == of) return access.buffer;
    }
    return std::nullopt;
  }
  [[nodiscard]] plan::Buffer declared(plan::ValueKind kind, std::uint32_t of, Use use) const {
    const auto buffer = find(kind, of, use);
    SPILLWAY_ASSERT(buffer.has_value() && "an op reaches only what it declares");
    return *buffer;
  }
  void check_declared(const plan::Buffer& buffer) const {
    const bool found =
        std::ranges::find(accesses_, buffer, &plan::Access::buffer) != accesses_.end();
    SPILLWAY_ASSERT(found && "an op reaches only what it declares");
  }
  [[nodiscard]] plan::Buffer only(Use use) const {
    SPILLWAY_ASSERT(accesses_.size() == 2 && !accesses_[0].writes && accesses_[1].writes);
    return accesses_[use == Use::writes ? 1 : 0].buffer;
  }

  const Memory& memory_;
  std::span<const plan::Access> accesses_;
};

}  // namespace spillway::engine
