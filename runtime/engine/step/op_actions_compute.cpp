// The ops of FWD-BWD: arguments of the transformer's passes from what an op declares.
#include "runtime/engine/step/op_actions.hpp"
#include "runtime/model/row_ops.hpp"

namespace spillway::engine {

using plan::Op;
using plan::OpKind;
using plan::ValueKind;

template <class Arguments>
Arguments OpActions::common_arguments(const Op& op) const {
  const OpMemory memory = memory_of(op);
  const plan::Workload& workload = resources_.workload;
  const bool is_loss = op.kind == OpKind::loss;
  const std::uint32_t layer = is_loss ? workload.head_layer() : workload.layer_of(op.block);
  Arguments arguments;
  arguments.block = op.block;
  // The embedding's backward reads no parameters.
  if (op.kind != OpKind::backward || layer > 0) {
    arguments.parameters =
        memory.device(memory.read(ValueKind::parameters, op.block), compute_bytes(op.block));
    if (workload.tiled) {
      arguments.shared = memory.device(memory.read(ValueKind::parameters, 0), compute_bytes(0));
    }
  }
  if (layer > 0 && memory.reads(ValueKind::boundary, layer - 1)) {
    arguments.input = memory.device(memory.read(ValueKind::boundary, layer - 1));
  }
  if constexpr (requires { arguments.normal; }) {
    if (memory.reads(ValueKind::normal, layer)) {
      arguments.normal = memory.device(memory.read(ValueKind::normal, layer));
    }
  }
  arguments.workspace = memory.device(memory.write(ValueKind::scratch));
  return arguments;
}

namespace {

/// Returns the tokens and targets on the device, which the op may have brought itself.
offload::DeviceSpan<std::int32_t> tokens_of(const OpMemory& memory) {
  const bool brings = memory.writes(ValueKind::tokens);
  return memory.device(brings ? memory.write(ValueKind::tokens) : memory.read(ValueKind::tokens))
      .as<std::int32_t>();
}

}  // namespace

model::ForwardArguments OpActions::forward_arguments(const Op& op) const {
  const OpMemory memory = memory_of(op);
  const std::uint32_t layer = resources_.workload.layer_of(op.block);
  auto arguments = common_arguments<model::ForwardArguments>(op);
  if (layer == 0) {
    const auto tokens = tokens_of(memory);
    arguments.tokens = tokens.subspan(0, tokens.size() / 2);
  }
  // A tile that recomputes writes no output.
  if (memory.writes(ValueKind::boundary, layer)) {
    arguments.output = memory.device(memory.write(ValueKind::boundary, layer));
  }
  if (memory.writes(ValueKind::saved, layer)) {
    const std::uint32_t first = resources_.workload.first_block(layer);
    arguments.saved = memory.device(memory.write(ValueKind::saved, layer),
                                    resources_.workload.blocks[first].saved_bytes);
  }
  return arguments;
}

/// Makes this rank's tokens of a norm's output, if that is what the op is for.
bool OpActions::normalizes(const Op& op) {
  const OpMemory memory = memory_of(op);
  const std::uint32_t layer = resources_.workload.layer_of(op.block);
  if (!memory.writes(ValueKind::normal, layer)) return false;
  auto arguments = common_arguments<model::NormalizeArguments>(op);
  arguments.output = memory.device(memory.write(ValueKind::normal, layer));
  resources_.transformer->normalize(arguments);
  return true;
}

void OpActions::forward(const Op& op) {
  if (normalizes(op)) return;
  resources_.transformer->forward(forward_arguments(op));
}

void OpActions::backward(const Op& op) {
  if (normalizes(op)) return;
  const OpMemory memory = memory_of(op);
  const plan::Workload& workload = resources_.workload;
  const std::uint32_t layer = workload.layer_of(op.block);
  auto arguments = common_arguments<model::BackwardArguments>(op);
  arguments.boundary_gradient = memory.device(memory.read(ValueKind::boundary_gradient, layer));
  arguments.gradients =
      memory.device(memory.write(ValueKind::gradient_sum, op.block), sum_bytes(op.block))
          .as<float>();
  arguments.first = op.micro_batch == 0;
  if (workload.sums_passes() && memory.reads(ValueKind::between_tiles, layer)) {
    arguments.carried = memory.device(memory.read(ValueKind::between_tiles, layer));
    return resources_.transformer->finish_backward(arguments);
  }
  if (layer > 0) {
    const bool recomputes = memory.writes(ValueKind::saved, layer);
    if (recomputes) resources_.transformer->forward(forward_arguments(op));
    const auto saved =
        recomputes ? memory.write(ValueKind::saved, layer) : memory.read(ValueKind::saved, layer);
    arguments.saved =
        memory.device(saved, workload.blocks[workload.first_block(layer)].saved_bytes);
    if (workload.tiled || workload.sums_passes()) {
      arguments.carried = memory.device(memory.write(ValueKind::between_tiles, layer));
    }
    if (workload.tiled) {
      arguments.shared_gradients =
          memory.device(memory.write(ValueKind::gradient_sum, 0)).as<float>();
    }
  } else {
    const auto tokens = memory.device(memory.read(ValueKind::tokens)).as<std::int32_t>();
    arguments.tokens = tokens.subspan(0, tokens.size() / 2);
  }
  resources_.transformer->backward(arguments);
}

/// Returns the parameters of an embedding; of another stage's, only what the head uses is here.
offload::DeviceSpan<std::byte> OpActions::tied_parameters(const Op& op, std::uint32_t block) const {
  const OpMemory memory = memory_of(op);
  const plan::Buffer at = memory.read(ValueKind::parameters, block);
  if (resources_.workload.borrows_embedding()) return memory.device(at);
  return memory.device(at, compute_bytes(block));
}

void OpActions::logits(const Op& op) {
  const OpMemory memory = memory_of(op);
  const auto common = common_arguments<model::LossArguments>(op);
  model::Transformer::LogitsArguments arguments;
  arguments.parameters = common.parameters;
  if (resources_.workload.tied_head) arguments.tied_parameters = tied_parameters(op, 0);
  arguments.input = common.input;
  arguments.logits = memory.device(memory.write(ValueKind::logits)).as<float>();
  arguments.all_positions = true;
  arguments.workspace = common.workspace;
  resources_.transformer->logits(arguments);
}

/// Runs one of the passes of a head that a tensor group shares out: what the op reads decides
/// which.
void OpActions::loss_of_group(const Op& op) {
  if (normalizes(op)) return;
  const OpMemory memory = memory_of(op);
  const std::uint32_t layer = resources_.workload.head_layer();
  auto arguments = common_arguments<model::LossArguments>(op);
  arguments.gradient_scale = step_.loss_gradient_scale;
  arguments.first = op.micro_batch == 0;
  const bool finishes = memory.reads(ValueKind::between_tiles, layer);
  const bool trains = finishes || memory.writes(ValueKind::between_tiles, layer);
  if (trains) {
    arguments.gradients =
        memory.device(memory.write(ValueKind::gradient_sum, op.block), sum_bytes(op.block))
            .as<float>();
    arguments.carried = memory.device(finishes ? memory.read(ValueKind::between_tiles, layer)
                                               : memory.write(ValueKind::between_tiles, layer));
  }
  if (finishes) {
    arguments.pass = model::LossPass::finish;
    arguments.boundary_gradient =
        memory.device(memory.write(ValueKind::boundary_gradient, layer - 1));
    return resources_.transformer->loss(arguments);
  }
  if (resources_.workload.tied_head) arguments.tied_parameters = tied_parameters(op, 0);
  const auto tokens = tokens_of(memory);
  arguments.targets = tokens.subspan(tokens.size() / 2, tokens.size() / 2);
  arguments.scans = memory.device(memory.write(ValueKind::scanned)).as<model::VocabularyScan>();
  if (memory.reads(ValueKind::gathered_scans)) {
    arguments.pass = model::LossPass::gradient;
    arguments.gathered =
        memory.device(memory.read(ValueKind::gathered_scans)).as<const model::VocabularyScan>();
    arguments.loss_sum = memory.device(memory.write(ValueKind::loss)).as<double>();
    if (resources_.workload.tied_head && trains) {
      arguments.tied_gradients =
          memory.device(memory.write(ValueKind::tied_gradient_sum)).as<float>();
    }
  }
  resources_.transformer->loss(arguments);
}

void OpActions::loss(const Op& op) {
  if (resources_.workload.sums_passes()) return loss_of_group(op);
  const OpMemory memory = memory_of(op);
  if (memory.writes(ValueKind::logits)) return logits(op);
  const plan::Workload& workload = resources_.workload;
  const std::uint32_t layer = workload.head_layer();
  const std::uint32_t tied = workload.tiled ? op.block : 0;
  const auto tokens = tokens_of(memory);
  auto arguments = common_arguments<model::LossArguments>(op);
  if (workload.tied_head) arguments.tied_parameters = tied_parameters(op, tied);
  arguments.targets = tokens.subspan(tokens.size() / 2, tokens.size() / 2);
  if (memory.writes(ValueKind::loss)) {
    arguments.loss_sum = memory.device(memory.write(ValueKind::loss)).as<double>();
  }
  const bool trains = memory.writes(ValueKind::boundary_gradient, layer - 1);
  if (workload.tiled) {
    arguments.carried =
        memory.device(memory.write(trains ? ValueKind::between_tiles : ValueKind::scanned, layer));
  }
  if (trains) {
    arguments.gradient_scale = step_.loss_gradient_scale;
    arguments.boundary_gradient =
        memory.device(memory.write(ValueKind::boundary_gradient, layer - 1));
    if (memory.writes(ValueKind::gradient_sum, op.block)) {
      arguments.gradients =
          memory.device(memory.write(ValueKind::gradient_sum, op.block), sum_bytes(op.block))
              .as<float>();
    }
    if (workload.tied_head) {
      arguments.tied_gradients =
          memory
              .device(memory.write(ValueKind::tied_gradient_sum, tied),
                      Bytes{workload.tied_elements_of(tied).value() * sizeof(float)})
              .as<float>();
    }
    if (workload.tiled) {
      arguments.shared_gradients =
          memory.device(memory.write(ValueKind::gradient_sum, 0)).as<float>();
    }
    arguments.first = op.micro_batch == 0;
  }
  resources_.transformer->loss(arguments);
}

}  // namespace spillway::engine
