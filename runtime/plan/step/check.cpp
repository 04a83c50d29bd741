#include "runtime/plan/step/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "runtime/plan/placement/pool_table.hpp"

namespace spillway::plan {
namespace {

constexpr OpIndex kNone = ~0U;
constexpr std::size_t kStaged = 1;  // the circumstance in which staging is filled
constexpr std::array<std::string_view, kCircumstances> kNames{
    "an update is pending", "an update is pending and staging is filled", "no update is pending"};

bool is_performed(const Op& op, std::size_t circumstance) {
  return (performed_in(op) >> circumstance & 1U) != 0;
}

/// Something of every buffer that a plan names.
template <class T>
class PerBuffer {
 public:
  T& operator[](const Buffer& buffer) {
    std::vector<T>& pool = pools_[static_cast<std::size_t>(buffer.pool)];
    if (pool.size() <= buffer.first) pool.resize(buffer.first + 1);
    return pool[buffer.first];
  }

 private:
  std::array<std::vector<T>, kPoolCount> pools_;
};

/// Visits the buffers of an access one by one: `visit(buffer, value)`.
template <class Visit>
void each_buffer(const Access& access, const Visit& visit) {
  const ValueKind kind = access.value.kind;
  const bool of_tiles =
      kind == ValueKind::state || kind == ValueKind::checksum || kind == ValueKind::norm_leaves;
  for (std::uint32_t i = 0; i < access.buffer.count; ++i) {
    Value value = access.value;
    if (of_tiles) value.of += i;
    visit(Buffer{access.buffer.pool, access.buffer.first + i}, value);
  }
}

/// What comes after what in one circumstance.
class Order {
 public:
  Order(const StepPlan& plan, std::size_t circumstance)
      : plan_(plan), circumstance_(circumstance), after_(plan.ops.size()) {
    std::array<OpIndex, kLaneCount> next;
    next.fill(kNone);
    for (auto& lanes : after_) lanes.fill(kNone);
    for (auto i = static_cast<OpIndex>(plan.ops.size()); i-- > 0;) {
      const Op& op = plan.ops[i];
      if (!is_performed(op, circumstance)) continue;
      const auto lane = static_cast<std::size_t>(op.lane);
      if (is_serial(op.lane)) {
        if (next[lane] != kNone) precede(i, next[lane]);
        next[lane] = i;
      }
      for (const OpIndex dependency : plan.dependencies_of(op)) precede(dependency, i);
    }
  }

  /// Returns whether `first` is complete when `second` starts.
  [[nodiscard]] bool is_before(OpIndex first, OpIndex second) const {
    const Op& op = plan_.ops[second];
    if (is_serial(op.lane)) return after_[first][static_cast<std::size_t>(op.lane)] <= second;
    return std::ranges::any_of(plan_.dependencies_of(op), [&](OpIndex dependency) {
      if (!is_performed(plan_.ops[dependency], circumstance_)) return false;
      return dependency == first || (dependency > first && is_before(first, dependency));
    });
  }

 private:
  void precede(OpIndex op, OpIndex later) {
    const Op& successor = plan_.ops[later];
    for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
      after_[op][lane] = std::min(after_[op][lane], after_[later][lane]);
    }
    if (!is_serial(successor.lane)) return;
    OpIndex& first = after_[op][static_cast<std::size_t>(successor.lane)];
    first = std::min(first, later);
  }

  const StepPlan& plan_;
  std::size_t circumstance_;
  /// By op and serial lane: the first op of the lane that comes after it.
  std::vector<std::array<OpIndex, kLaneCount>> after_;
};

/// The ops that have used a buffer: its last writer, and the readers since.
struct Users {
  OpIndex writer = kNone;
  std::vector<OpIndex> readers;
};

std::string find_race(const StepPlan& plan, std::size_t circumstance) {
  const Order order(plan, circumstance);
  PerBuffer<Users> users;
  std::string race;
  for (OpIndex i = 0; i < plan.ops.size(); ++i) {
    if (!is_performed(plan.ops[i], circumstance)) continue;
    for (const Access& access : plan.accesses_of(plan.ops[i])) {
      each_buffer(access, [&](const Buffer& buffer, const Value&) {
        const auto need_order = [&](OpIndex earlier) {
          if (!race.empty() || earlier == i || order.is_before(earlier, i)) return;
          race = fmt::format("ops {} ({}) and {} ({}) race on {} when {}", earlier,
                             name_of(plan.ops[earlier]), i, name_of(plan.ops[i]), to_text(buffer),
                             kNames[circumstance]);
        };
        Users& uses = users[buffer];
        if (uses.writer != kNone) need_order(uses.writer);
        if (!access.writes) {
          uses.readers.push_back(i);
          return;
        }
        std::ranges::for_each(uses.readers, need_order);
        uses = {.writer = i, .readers = {}};
      });
      if (!race.empty()) return race;
    }
  }
  return {};
}

/// Whether a pool's contents outlive the step, for another step to find.
bool outlives_steps(PoolKind pool, std::size_t circumstance) {
  const Found found = rule_of(pool).found;
  return found == Found::everything || (found == Found::staged_state && circumstance == kStaged);
}

/// Whether the pool keeps what passes backward need of rounds in flight.
bool is_of_rounds_in_flight(PoolKind pool) {
  return rule_of(pool).found == Found::rounds_in_flight;
}

/// The plan and the circumstance in which it runs.
struct Run {
  const StepPlan& plan;
  std::size_t circumstance;

  /// Returns whether what lies there before the plan can be the value.
  [[nodiscard]] bool finds(PoolKind pool, const Value& value) const {
    if (outlives_steps(pool, circumstance)) return true;
    return is_of_rounds_in_flight(pool) && value.round < plan.rounds_found;
  }
};

struct Content {
  std::optional<Value> value;
  bool from_before = false;  ///< no op has written it: an op has found it
};

std::string describe(const Value& value) {
  constexpr std::array kExtents{"whole", "shard", "secondary", "addend", "gathered"};
  return fmt::format("{} of {}, micro-batch {}, round {}, part {}, {}, age {}", name_of(value.kind),
                     value.of, value.micro_batch, value.round, value.part,
                     kExtents[static_cast<std::size_t>(value.extent)], value.age);
}

/// Returns what is wrong with one buffer of an access, and takes note of what it holds afterwards.
std::string meet(Content& content, const Buffer& buffer, const Value& value, bool writes,
                 const Run& run) {
  if (writes) {
    const bool too_late = content.from_before && content.value == value;
    content = {.value = value};
    return too_late ? fmt::format("an op before it has read {} already", describe(value)) : "";
  }
  if (!content.value && run.finds(buffer.pool, value)) {
    // Recomputation writes what it reads of a round in flight once more.
    content = {.value = value, .from_before = outlives_steps(buffer.pool, run.circumstance)};
  }
  if (content.value == value) return {};
  return fmt::format("{} holds {} instead of {}", to_text(buffer),
                     content.value ? describe(*content.value) : "nothing", describe(value));
}

std::string find_wrong_content(const StepPlan& plan, std::size_t circumstance) {
  const Run run{plan, circumstance};
  PerBuffer<Content> contents;
  for (OpIndex i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    if (!is_performed(op, circumstance)) continue;
    std::string wrong;
    // An op reads all that it reads before it writes.
    for (const bool writes : {false, true}) {
      for (const Access& access : plan.accesses_of(op)) {
        if (access.writes != writes) continue;
        each_buffer(access, [&](const Buffer& buffer, const Value& value) {
          std::string found = meet(contents[buffer], buffer, value, writes, run);
          if (wrong.empty()) wrong = std::move(found);
        });
      }
    }
    if (!wrong.empty()) {
      return fmt::format("op {} ({} of block {}), when {}: {}", i, name_of(op), op.block,
                         kNames[circumstance], wrong);
    }
  }
  return {};
}

}  // namespace

std::string find_race(const StepPlan& plan) {
  for (OpIndex i = 0; i < plan.ops.size(); ++i) {
    for (const OpIndex dependency : plan.dependencies_of(plan.ops[i])) {
      if (dependency >= i) return fmt::format("op {} depends on op {}", i, dependency);
    }
  }
  for (std::size_t c = 0; c < kCircumstances; ++c) {
    if (std::string race = find_race(plan, c); !race.empty()) return race;
  }
  return {};
}

std::string find_wrong_content(const StepPlan& plan) {
  for (std::size_t c = 0; c < kCircumstances; ++c) {
    if (std::string wrong = find_wrong_content(plan, c); !wrong.empty()) return wrong;
  }
  return {};
}

std::string find_lost_round(std::span<const StepPlan> lists, std::uint32_t rounds) {
  PerBuffer<std::optional<Value>> left;
  for (std::size_t list = 0; list < lists.size(); ++list) {
    const std::size_t steps_before = list - std::min<std::size_t>(list, 1);
    for (const Access& access : lists[list].accesses) {
      if (!is_of_rounds_in_flight(access.buffer.pool)) continue;
      Value value = access.value;
      value.round += static_cast<std::uint32_t>(steps_before) * rounds;
      std::optional<Value>& there = left[access.buffer];
      if (access.writes) there = value;
      if (there == value) continue;
      return fmt::format("{} holds {} instead of {} in step {}", to_text(access.buffer),
                         there ? describe(*there) : "nothing", describe(value), steps_before);
    }
  }
  return {};
}

}  // namespace spillway::plan
