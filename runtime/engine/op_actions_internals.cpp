// The ops that move kept internal activations: device slots to the host and back.
#include "runtime/engine/op_actions.hpp"

namespace spillway::engine {

void OpActions::copy_internals(const plan::Op& op, offload::Stream& stream) {
  InternalsHomes& internals = resources_.homes.internals();
  const auto host = internals.host(op);
  if (op.kind == plan::OpKind::save_internals) {
    stream.download(host, internals.device(op));
  } else {
    stream.upload(internals.device(op), host);
  }
  count(op.kind, host.size());
}

}  // namespace spillway::engine
