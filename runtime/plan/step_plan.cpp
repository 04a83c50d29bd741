#include "runtime/plan/step_plan.hpp"

#include <fmt/format.h>

#include <iterator>

namespace spillway::plan {

namespace {

bool is_of_micro_batch(OpKind kind) {
  return kind == OpKind::forward || kind == OpKind::backward || kind == OpKind::loss ||
         kind == OpKind::save_activation || kind == OpKind::load_activation ||
         kind == OpKind::spill_activation || kind == OpKind::fetch_activation ||
         kind == OpKind::save_internals || kind == OpKind::load_internals;
}

}  // namespace

std::string_view name_of(OpKind kind) {
  switch (kind) {
    case OpKind::read_state: return "read_state";
    case OpKind::write_state: return "write_state";
    case OpKind::upload_params: return "upload_params";
    case OpKind::download_grads: return "download_grads";
    case OpKind::forward: return "forward";
    case OpKind::backward: return "backward";
    case OpKind::loss: return "loss";
    case OpKind::accumulate: return "accumulate";
    case OpKind::grad_norm: return "grad_norm";
    case OpKind::update: return "update";
    case OpKind::checksum: return "checksum";
    case OpKind::save_activation: return "save_activation";
    case OpKind::load_activation: return "load_activation";
    case OpKind::spill_activation: return "spill_activation";
    case OpKind::fetch_activation: return "fetch_activation";
    case OpKind::save_internals: return "save_internals";
    case OpKind::load_internals: return "load_internals";
    case OpKind::commit: return "commit";
  }
  return "unknown";
}

std::string_view name_of(Lane lane) {
  switch (lane) {
    case Lane::gpu: return "gpu";
    case Lane::h2d: return "h2d";
    case Lane::d2h: return "d2h";
    case Lane::cpu: return "cpu";
    case Lane::nvme_read: return "nvme_read";
    case Lane::nvme_write: return "nvme_write";
  }
  return "unknown";
}

std::string_view name_of(Tier tier) {
  switch (tier) {
    case Tier::device: return "device";
    case Tier::host: return "host";
    case Tier::nvme: return "nvme";
  }
  return "unknown";
}

Bytes bytes_moved(const StepPlan& plan, OpKind kind) {
  Bytes sum;
  for (const Op& op : plan.ops) {
    if (op.kind == kind && !op.held) sum += op.bytes;
  }
  return sum;
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
    const bool of_tile = op.kind == OpKind::read_state || op.kind == OpKind::write_state ||
                         op.kind == OpKind::update || op.kind == OpKind::grad_norm ||
                         op.kind == OpKind::checksum;
    fmt::format_to(std::back_inserter(text), "{:4} {:<10} {:<14} block={}", i, name_of(op.lane),
                   name_of(op.kind), op.block);
    if (of_tile) fmt::format_to(std::back_inserter(text), " tile={}", op.tile);
    if (is_of_micro_batch(op.kind)) {
      fmt::format_to(std::back_inserter(text), " round={} micro_batch={}", op.round,
                     op.micro_batch);
    }
    text += text_of_accesses(plan, op, false) + text_of_accesses(plan, op, true);
    if (op.bytes > Bytes{}) fmt::format_to(std::back_inserter(text), " bytes={}", op.bytes.value());
    if (op.held) text += " held";
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
