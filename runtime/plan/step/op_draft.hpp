// OpDraft: an op of a step plan while it is put together, with what it reads and writes.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "runtime/base/error.hpp"
#include "runtime/plan/step_plan.hpp"

namespace spillway::plan {

class OpDraft {
 public:
  OpDraft(OpKind kind, Lane lane, std::uint32_t block) {
    op.kind = kind;
    op.lane = lane;
    op.block = block;
  }

  void read(const Buffer& buffer, const Value& value) { add({buffer, value, false}); }
  void write(const Buffer& buffer, const Value& value) { add({buffer, value, true}); }
  void read(const Access& access) { read(access.buffer, access.value); }
  void write(const Access& access) { write(access.buffer, access.value); }
  [[nodiscard]] std::span<const Access> accesses() const {
    return std::span(accesses_).first(count_);
  }

  Op op;

 private:
  void add(const Access& access) {
    SPILLWAY_ASSERT(count_ < accesses_.size());
    accesses_[count_++] = access;
  }

  std::array<Access, 14> accesses_{};
  std::size_t count_ = 0;
};

}  // namespace spillway::plan
