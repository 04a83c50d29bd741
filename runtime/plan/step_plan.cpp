#include "runtime/plan/step_plan.hpp"

#include <fmt/format.h>

#include <iterator>

namespace spillway::plan {

namespace {

std::string_view name_of(const Copy& copied) {
  const bool down = copied.from < copied.to;
  switch (copied.what) {
    case ValueKind::parameters: return down ? "keep_params" : "upload_params";
    case ValueKind::frozen: return copied.from == Tier::nvme ? "read_frozen" : "upload_frozen";
    case ValueKind::gradient: return "download_grads";
    case ValueKind::state: return copied.to == Tier::nvme ? "write_state" : "read_state";
    case ValueKind::saved:
      if (copied.to == Tier::nvme) return "spill_activations";
      if (copied.from == Tier::nvme) return "fetch_activations";
      return down ? "save_activations" : "load_activations";
    case ValueKind::boundary:
      if (copied.to == Tier::nvme) return "spill_boundary";
      if (copied.from == Tier::nvme) return "fetch_boundary";
      return down ? "save_boundary" : "load_boundary";
    default: return "copy";
  }
}

bool is_of_tile(const Op& op) {
  const bool copies_state = op.kind == OpKind::copy && op.copied.what == ValueKind::state;
  return copies_state || op.kind == OpKind::update || op.kind == OpKind::grad_norm ||
         op.kind == OpKind::checksum;
}

bool is_of_micro_batch(const Op& op) {
  const ValueKind what = op.copied.what;
  const bool copies = what == ValueKind::boundary || what == ValueKind::saved;
  return is_model_op(op) || (op.kind == OpKind::copy && copies);
}

}  // namespace

std::string_view name_of(OpKind kind) {
  switch (kind) {
    case OpKind::copy: return "copy";
    case OpKind::forward: return "forward";
    case OpKind::backward: return "backward";
    case OpKind::loss: return "loss";
    case OpKind::round_gradient:
    case OpKind::add_gradient: return "accumulate";
    case OpKind::grad_norm: return "grad_norm";
    case OpKind::update: return "update";
    case OpKind::checksum: return "checksum";
    case OpKind::commit: return "commit";
    case OpKind::stash: return "stash";
    case OpKind::all_gather: return "all_gather";
    case OpKind::reduce_scatter: return "reduce_scatter";
    case OpKind::all_reduce: return "all_reduce";
    case OpKind::all_to_all: return "all_to_all";
    case OpKind::send: return "send";
    case OpKind::receive: return "receive";
  }
  return "unknown";
}

std::string_view name_of(const Op& op) {
  return op.kind == OpKind::copy ? name_of(op.copied) : name_of(op.kind);
}

std::string_view name_of(Lane lane) {
  switch (lane) {
    case Lane::gpu: return "gpu";
    case Lane::h2d: return "h2d";
    case Lane::d2h: return "d2h";
    case Lane::cpu: return "cpu";
    case Lane::net: return "net";
    case Lane::nvme_read: return "nvme_read";
    case Lane::nvme_write: return "nvme_write";
    case Lane::external: return "external";
  }
  return "unknown";
}

Bytes bytes_moved(const StepPlan& plan, const Copy& copied) {
  Bytes sum;
  for (const Op& op : plan.ops) {
    if (is_copy(op, copied) && !op.held) sum += op.bytes;
  }
  return sum;
}

StepPlan only(const StepPlan& plan, const std::function<bool(const Op&)>& wanted) {
  constexpr OpIndex kLeftOut = ~OpIndex{0};
  StepPlan result;
  result.accesses = plan.accesses;
  std::vector<OpIndex> place(plan.ops.size(), kLeftOut);
  for (OpIndex i = 0; i < plan.ops.size(); ++i) {
    Op op = plan.ops[i];
    if (!wanted(op)) continue;
    op.first_dependency = static_cast<std::uint32_t>(result.dependencies.size());
    for (const OpIndex dependency : plan.dependencies_of(plan.ops[i])) {
      if (place[dependency] != kLeftOut) result.dependencies.push_back(place[dependency]);
    }
    op.dependency_count =
        static_cast<std::uint32_t>(result.dependencies.size()) - op.first_dependency;
    place[i] = static_cast<OpIndex>(result.ops.size());
    result.ops.push_back(op);
  }
  return result;
}

namespace {

/// Returns " reads a, b" of the buffers that the op reads, or writes.
std::string text_of_accesses(const StepPlan& plan, const Op& op, bool writes) {
  std::vector<std::string> buffers;
  for (const Access& access : plan.accesses_of(op)) {
    if (access.writes == writes) buffers.push_back(to_text(access.buffer));
  }
  if (buffers.empty()) return {};
  return fmt::format(" {} {}", writes ? "writes" : "reads", fmt::join(buffers, ", "));
}

}  // namespace

std::string to_text(const StepPlan& plan) {
  std::string text;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    fmt::format_to(std::back_inserter(text), "{:4} {:<10} {:<17} block={}", i, name_of(op.lane),
                   name_of(op), op.block);
    if (is_of_tile(op)) fmt::format_to(std::back_inserter(text), " tile={}", op.tile);
    if (is_of_micro_batch(op)) {
      fmt::format_to(std::back_inserter(text), " round={} micro_batch={}", op.round,
                     op.micro_batch);
    }
    text +=
        text_of_accesses(plan, op, /*writes=*/false) + text_of_accesses(plan, op, /*writes=*/true);
    if (op.bytes > Bytes{}) fmt::format_to(std::back_inserter(text), " bytes={}", op.bytes.value());
    if (op.held) text += " held";
    if (op.speculative) text += " speculative";
    if (op.if_pending) text += " if_pending";
    if (op.dependency_count > 0) {
      fmt::format_to(std::back_inserter(text), " after {}",
                     fmt::join(plan.dependencies_of(op), ","));
    }
    text += '\n';
  }
  return text;
}

}  // namespace spillway::plan
