#include "runtime/plan/step/builder/op_list.hpp"

#include <span>

#include "runtime/base/error.hpp"
#include "runtime/plan/placement/pools.hpp"

namespace spillway::plan {
namespace {

/// Returns what a copy carries: the first thing that it reads, to where it writes it.
Copy copied_by(std::span<const Access> accesses) {
  const Access& source = accesses.front();
  const Access& target = accesses.back();
  SPILLWAY_ASSERT(!source.writes && target.writes);
  ValueKind what = source.value.kind;
  if (what == ValueKind::total_gradient) what = ValueKind::gradient;
  if (what == ValueKind::boundary_gradient) what = ValueKind::boundary;
  return {.what = what, .from = tier_of(source.buffer.pool), .to = tier_of(target.buffer.pool)};
}

}  // namespace

void OpList::clear() {
  plan_.rounds_found = 0;
  plan_.ops.clear();
  plan_.accesses.clear();
  plan_.dependencies.clear();
  tracker_.clear();
}

void OpList::append(const OpDraft& draft, std::uint32_t round) {
  Op op = draft.op;
  const std::span<const Access> accesses = draft.accesses();
  op.round = round;
  if (op.kind == OpKind::copy) op.copied = copied_by(accesses);
  op.first_access = static_cast<std::uint32_t>(plan_.accesses.size());
  op.access_count = static_cast<std::uint32_t>(accesses.size());
  plan_.accesses.insert(plan_.accesses.end(), accesses.begin(), accesses.end());
  const std::span<const OpIndex> dependencies = tracker_.append(op, accesses);
  op.first_dependency = static_cast<std::uint32_t>(plan_.dependencies.size());
  op.dependency_count = static_cast<std::uint32_t>(dependencies.size());
  plan_.dependencies.insert(plan_.dependencies.end(), dependencies.begin(), dependencies.end());
  plan_.ops.push_back(op);
}

}  // namespace spillway::plan
