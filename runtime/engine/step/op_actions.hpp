// OpActions: what each op of a plan does to the memory that it declares. It hands an op to the part
// that knows its kind, and makes the simple copies itself; nothing here decides when. Control
// thread, except the bodies that it hands to streams and workers.
#pragma once

#include "runtime/engine/step/activation_ops.hpp"
#include "runtime/engine/step/executor.hpp"
#include "runtime/engine/step/frozen_ops.hpp"
#include "runtime/engine/step/op_context.hpp"
#include "runtime/engine/step/pass_ops.hpp"
#include "runtime/engine/step/state_ops.hpp"
#include "runtime/engine/step/update_ops.hpp"
#include "runtime/engine/step/worker_checksum.hpp"

namespace spillway::engine {

class OpActions final : public OpPerformer {
 public:
  explicit OpActions(OpResources resources);
  OpActions(const OpActions&) = delete;
  OpActions& operator=(const OpActions&) = delete;

  /// Makes ops of the lists to come act on these decisions, which outlive these lists. Before the
  /// first call there is no update, no commit and no copy.
  void follow(const StepDecisions& decisions) { context_.decisions = &decisions; }
  /// Forgets what the staging buffers held, because somebody else has used them.
  void forget_staged() { state_.forget_staged(); }

  void begin(const plan::StepPlan& plan) override { context_.plan = &plan; }
  [[nodiscard]] bool skips(const plan::Op& op) const override;
  void enqueue(const plan::Op& op, offload::Stream& stream) override;
  [[nodiscard]] Ticket start(const plan::Op& op) override;

  /// Returns the bytes that copies of one sort have really moved since construction.
  [[nodiscard]] Bytes moved(const plan::Copy& copied) const { return context_.moved.of(copied); }

 private:
  void upload_tokens(const plan::Op& op, offload::Stream& stream) const;
  void copy(const plan::Op& op, offload::Stream& stream);
  [[nodiscard]] Ticket copy(const plan::Op& op);
  void keep_secondary(const plan::Op& op, offload::Stream& stream);
  void device_stash(const plan::Op& op) const;
  void host_stash(const plan::Op& op) const;
  [[nodiscard]] ExternalPass external_pass(const plan::Op& op) const;

  const StepDecisions undecided_{};
  OpContext context_;
  WorkerChecksum checksum_;
  PassOps passes_;
  StateOps state_;
  UpdateOps updates_;
  ActivationOps activations_;
  FrozenOps frozen_;
};

}  // namespace spillway::engine
