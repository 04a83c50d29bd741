#include "runtime/engine/step/pass_ops.hpp"

#include "runtime/model/row_ops.hpp"

namespace spillway::engine {

using plan::Op;
using plan::OpKind;
using plan::ValueKind;

template <class Arguments>
Arguments PassOps::common_arguments(const Op& op) const {
  const OpMemory memory = context_.memory_of(op);
  const plan::Workload& workload = context_.resources.workload;
  const bool is_loss = op.kind == OpKind::loss;
  const std::uint32_t layer = is_loss ? workload.head_layer() : workload.layer_of(op.block);
  Arguments arguments;
  arguments.block = op.block;
  // The embedding's backward reads no parameters.
  if (op.kind != OpKind::backward || layer > 0) {
    arguments.parameters = memory.device(memory.read(ValueKind::parameters, op.block),
                                         context_.compute_bytes(op.block));
    if (workload.operator_tiles) {
      arguments.shared =
          memory.device(memory.read(ValueKind::parameters, 0), context_.compute_bytes(0));
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

model::ForwardArguments PassOps::forward_arguments(const Op& op) const {
  const OpMemory memory = context_.memory_of(op);
  const std::uint32_t layer = context_.resources.workload.layer_of(op.block);
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
    const std::uint32_t first = context_.resources.workload.first_block(layer);
    arguments.saved = memory.device(memory.write(ValueKind::saved, layer),
                                    context_.resources.workload.blocks[first].saved_bytes);
  }
  return arguments;
}

/// Makes this rank's tokens of a norm's output, if that is what the op is for.
bool PassOps::normalizes(const Op& op) const {
  const OpMemory memory = context_.memory_of(op);
  const std::uint32_t layer = context_.resources.workload.layer_of(op.block);
  if (!memory.writes(ValueKind::normal, layer)) return false;
  auto arguments = common_arguments<model::NormalizeArguments>(op);
  arguments.output = memory.device(memory.write(ValueKind::normal, layer));
  context_.resources.transformer->normalize(arguments);
  return true;
}

void PassOps::forward(const Op& op) const {
  if (normalizes(op)) return;
  context_.resources.transformer->forward(forward_arguments(op));
}

void PassOps::backward(const Op& op) const {
  if (normalizes(op)) return;
  const OpMemory memory = context_.memory_of(op);
  const plan::Workload& workload = context_.resources.workload;
  const std::uint32_t layer = workload.layer_of(op.block);
  auto arguments = common_arguments<model::BackwardArguments>(op);
  arguments.boundary_gradient = memory.device(memory.read(ValueKind::boundary_gradient, layer));
  arguments.gradients =
      memory.device(memory.write(ValueKind::gradient_sum, op.block), context_.sum_bytes(op.block))
          .as<float>();
  arguments.first = op.micro_batch == 0;
  if (workload.sums_passes() && memory.reads(ValueKind::between_tiles, layer)) {
    arguments.carried = memory.device(memory.read(ValueKind::between_tiles, layer));
    return context_.resources.transformer->finish_backward(arguments);
  }
  if (layer > 0) {
    const bool recomputes = memory.writes(ValueKind::saved, layer);
    if (recomputes) context_.resources.transformer->forward(forward_arguments(op));
    const auto saved =
        recomputes ? memory.write(ValueKind::saved, layer) : memory.read(ValueKind::saved, layer);
    arguments.saved =
        memory.device(saved, workload.blocks[workload.first_block(layer)].saved_bytes);
    if (workload.operator_tiles || workload.sums_passes()) {
      arguments.carried = memory.device(memory.write(ValueKind::between_tiles, layer));
    }
    if (workload.operator_tiles) {
      arguments.shared_gradients =
          memory.device(memory.write(ValueKind::gradient_sum, 0)).as<float>();
    }
  } else {
    const auto tokens = memory.device(memory.read(ValueKind::tokens)).as<std::int32_t>();
    arguments.tokens = tokens.subspan(0, tokens.size() / 2);
  }
  context_.resources.transformer->backward(arguments);
}

/// Returns the parameters of an embedding; of another stage's, only what the head uses is here.
offload::DeviceSpan<std::byte> PassOps::tied_parameters(const Op& op, std::uint32_t block) const {
  const OpMemory memory = context_.memory_of(op);
  const plan::Buffer at = memory.read(ValueKind::parameters, block);
  if (context_.resources.workload.borrows_embedding()) return memory.device(at);
  return memory.device(at, context_.compute_bytes(block));
}

void PassOps::logits(const Op& op) const {
  const OpMemory memory = context_.memory_of(op);
  const auto common = common_arguments<model::LossArguments>(op);
  model::Transformer::LogitsArguments arguments;
  arguments.parameters = common.parameters;
  if (context_.resources.workload.tied_head) arguments.tied_parameters = tied_parameters(op, 0);
  arguments.input = common.input;
  arguments.logits = memory.device(memory.write(ValueKind::logits)).as<float>();
  arguments.all_positions = true;
  arguments.workspace = common.workspace;
  context_.resources.transformer->logits(arguments);
}

/// Runs one of the passes of a head that a tensor group shares out: what the op reads decides
/// which.
void PassOps::loss_of_group(const Op& op) const {
  if (normalizes(op)) return;
  const OpMemory memory = context_.memory_of(op);
  const std::uint32_t layer = context_.resources.workload.head_layer();
  auto arguments = common_arguments<model::LossArguments>(op);
  arguments.gradient_scale = context_.decisions->loss_gradient_scale;
  arguments.first = op.micro_batch == 0;
  const bool finishes = memory.reads(ValueKind::between_tiles, layer);
  const bool trains = finishes || memory.writes(ValueKind::between_tiles, layer);
  if (trains) {
    arguments.gradients =
        memory.device(memory.write(ValueKind::gradient_sum, op.block), context_.sum_bytes(op.block))
            .as<float>();
    arguments.carried = memory.device(finishes ? memory.read(ValueKind::between_tiles, layer)
                                               : memory.write(ValueKind::between_tiles, layer));
  }
  if (finishes) {
    arguments.pass = model::LossPass::finish;
    arguments.boundary_gradient =
        memory.device(memory.write(ValueKind::boundary_gradient, layer - 1));
    return context_.resources.transformer->loss(arguments);
  }
  if (context_.resources.workload.tied_head) arguments.tied_parameters = tied_parameters(op, 0);
  const auto tokens = tokens_of(memory);
  arguments.targets = tokens.subspan(tokens.size() / 2, tokens.size() / 2);
  arguments.scans = memory.device(memory.write(ValueKind::scanned)).as<model::VocabularyScan>();
  if (memory.reads(ValueKind::gathered_scans)) {
    arguments.pass = model::LossPass::gradient;
    arguments.gathered =
        memory.device(memory.read(ValueKind::gathered_scans)).as<const model::VocabularyScan>();
    arguments.loss_sum = memory.device(memory.write(ValueKind::loss)).as<double>();
    if (context_.resources.workload.tied_head && trains) {
      arguments.tied_gradients =
          memory.device(memory.write(ValueKind::tied_gradient_sum)).as<float>();
    }
  }
  context_.resources.transformer->loss(arguments);
}

/// Adds where the loss of a whole head, or of its tile, leaves gradients.
void PassOps::add_loss_gradients(const Op& op, model::LossArguments& arguments) const {
  const OpMemory memory = context_.memory_of(op);
  const plan::Workload& workload = context_.resources.workload;
  arguments.gradient_scale = context_.decisions->loss_gradient_scale;
  arguments.boundary_gradient =
      memory.device(memory.write(ValueKind::boundary_gradient, workload.head_layer() - 1));
  if (memory.writes(ValueKind::gradient_sum, op.block)) {
    arguments.gradients =
        memory.device(memory.write(ValueKind::gradient_sum, op.block), context_.sum_bytes(op.block))
            .as<float>();
  }
  if (workload.tied_head) {
    const std::uint32_t tied = workload.operator_tiles ? op.block : 0;
    arguments.tied_gradients =
        memory
            .device(memory.write(ValueKind::tied_gradient_sum, tied),
                    Bytes{workload.tied_elements_of(tied).value() * sizeof(float)})
            .as<float>();
  }
  if (workload.operator_tiles) {
    arguments.shared_gradients =
        memory.device(memory.write(ValueKind::gradient_sum, 0)).as<float>();
  }
  arguments.first = op.micro_batch == 0;
}

void PassOps::loss(const Op& op) const {
  if (context_.resources.workload.sums_passes()) return loss_of_group(op);
  const OpMemory memory = context_.memory_of(op);
  if (memory.writes(ValueKind::logits)) return logits(op);
  const plan::Workload& workload = context_.resources.workload;
  const std::uint32_t layer = workload.head_layer();
  const auto tokens = tokens_of(memory);
  auto arguments = common_arguments<model::LossArguments>(op);
  if (workload.tied_head) {
    arguments.tied_parameters = tied_parameters(op, workload.operator_tiles ? op.block : 0);
  }
  arguments.targets = tokens.subspan(tokens.size() / 2, tokens.size() / 2);
  if (memory.writes(ValueKind::loss)) {
    arguments.loss_sum = memory.device(memory.write(ValueKind::loss)).as<double>();
  }
  const bool trains = memory.writes(ValueKind::boundary_gradient, layer - 1);
  if (workload.operator_tiles) {
    arguments.carried =
        memory.device(memory.write(trains ? ValueKind::between_tiles : ValueKind::scanned, layer));
  }
  if (trains) add_loss_gradients(op, arguments);
  context_.resources.transformer->loss(arguments);
}

}  // namespace spillway::engine
