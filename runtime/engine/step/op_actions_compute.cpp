// The ops of FWD-BWD: arguments of the transformer's passes from what an op declares.
#include "runtime/engine/step/op_actions.hpp"

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
  if (layer > 0) {
    arguments.input = memory.device(memory.read(ValueKind::activation, layer - 1));
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
  if (memory.writes(ValueKind::activation, layer)) {
    arguments.output = memory.device(memory.write(ValueKind::activation, layer));
  }
  if (memory.writes(ValueKind::saved, layer)) {
    const std::uint32_t first = resources_.workload.first_block(layer);
    arguments.saved = memory.device(memory.write(ValueKind::saved, layer),
                                    resources_.workload.blocks[first].saved_bytes);
  }
  return arguments;
}

void OpActions::forward(const Op& op) { resources_.transformer->forward(forward_arguments(op)); }

void OpActions::backward(const Op& op) {
  const OpMemory memory = memory_of(op);
  const plan::Workload& workload = resources_.workload;
  const std::uint32_t layer = workload.layer_of(op.block);
  auto arguments = common_arguments<model::BackwardArguments>(op);
  if (layer > 0) {
    const bool recomputes = memory.writes(ValueKind::saved, layer);
    if (recomputes) resources_.transformer->forward(forward_arguments(op));
    const auto saved =
        recomputes ? memory.write(ValueKind::saved, layer) : memory.read(ValueKind::saved, layer);
    arguments.saved =
        memory.device(saved, workload.blocks[workload.first_block(layer)].saved_bytes);
    if (workload.tiled) {
      arguments.carried = memory.device(memory.write(ValueKind::between_tiles, layer));
      arguments.shared_gradients =
          memory.device(memory.write(ValueKind::gradient_sum, 0)).as<float>();
    }
  } else {
    const auto tokens = memory.device(memory.read(ValueKind::tokens)).as<std::int32_t>();
    arguments.tokens = tokens.subspan(0, tokens.size() / 2);
  }
  arguments.boundary_gradient = memory.device(memory.read(ValueKind::activation_gradient, layer));
  arguments.gradients =
      memory.device(memory.write(ValueKind::gradient_sum, op.block), sum_bytes(op.block))
          .as<float>();
  arguments.first = op.micro_batch == 0;
  resources_.transformer->backward(arguments);
}

/// Another stage's embedding is here as far as the head uses it.
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

void OpActions::loss(const Op& op) {
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
  const bool trains = memory.writes(ValueKind::activation_gradient, layer - 1);
  if (workload.tiled) {
    arguments.carried =
        memory.device(memory.write(trains ? ValueKind::between_tiles : ValueKind::scanned, layer));
  }
  if (trains) {
    arguments.gradient_scale = step_.loss_gradient_scale;
    arguments.boundary_gradient =
        memory.device(memory.write(ValueKind::activation_gradient, layer - 1));
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
