// The ops of many ranks: what an op reads goes to the others, what it writes comes from them.
#pragma once

#include "runtime/engine/step/op_context.hpp"

namespace spillway::engine {

/// Starts an exchange where the device's memory is the process's own.
[[nodiscard]] Ticket exchange(const OpContext& context, const plan::Op& op);
/// Enqueues an exchange where the device's memory is a GPU's.
void exchange(const OpContext& context, const plan::Op& op, offload::Stream& stream);

}  // namespace spillway::engine
