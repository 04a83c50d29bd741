#include "runtime/plan/step/builder/pass_writer.hpp"

namespace spillway::plan {

void PassWriter::bring_tokens(OpDraft& draft, bool brought) const {
  const std::uint32_t m = draft.op.micro_batch;
  if (brought) return draft.read(device_tokens(m), of_pass(ValueKind::tokens, m));
  draft.read({PoolKind::host_tokens, pass_index(m)}, of_pass(ValueKind::tokens, m));
  draft.write(device_tokens(m), of_pass(ValueKind::tokens, m));
}

}  // namespace spillway::plan
