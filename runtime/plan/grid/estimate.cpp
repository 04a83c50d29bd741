#include "runtime/plan/grid/estimate.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/plan/pipeline/stages.hpp"
#include "runtime/plan/pipeline/timeline.hpp"

namespace spillway::plan {
namespace {

/// Master, momentum and variance; and what an update reads and writes of these, of the sum of
/// gradients, and of the parameters that it casts.
constexpr double kStateBytes = 3 * sizeof(float);
constexpr double kUpdateBytes = 2 * kStateBytes + sizeof(float);

double element_bytes(const GridWork& work) {
  return static_cast<double>(size_of(work.workload.compute));
}

/// Parameters of a stage on one of its ranks, before ZeRO divides them.
double parameters_of(const GridWork& work, const GridPipeline& on, const TensorCut& cut,
                     std::uint32_t stage) {
  const Workload& w = work.workload;
  const auto count = [&](std::uint32_t layer) {
    return static_cast<double>(w.blocks[layer].parameters.value());
  };
  double sum = 0;
  for (std::size_t part = stage; part < on.parts.size(); part += on.pipeline.stages) {
    for (std::uint32_t l = on.parts[part].first; l < on.parts[part].end; ++l) sum += count(l);
  }
  const bool borrows = w.tied_head && on.pipeline.stages > 1 && stage + 1 == on.pipeline.stages;
  if (borrows) sum += static_cast<double>(w.tied_elements.value());
  return sum / cut.parameter_parts();
}

/// A pass of a stage through one of its chunks.
struct PassSeconds {
  double compute = 0;
  double recompute = 0;
  double tensor = 0;

  [[nodiscard]] double sum() const { return compute + recompute + tensor; }
};

struct Passes {
  PassSeconds forward;
  PassSeconds backward;
};

/// Returns the rate at which ranks of a group send to each other. Those of one machine have numbers
/// in a row, of which a group takes up `span`.
double rate_among(const GridMachine& machine, std::uint64_t span) {
  return span <= machine.gpus && machine.gpus % span == 0 ? machine.inside : machine.between;
}

Passes passes_through(const GridWork& work, const GridMachine& machine, const GridChoice& choice,
                      const BlockRange& part) {
  const Workload& w = work.workload;
  const double rate = machine.flops * choice.cut.ranks();
  const double sent = element_bytes(work) / rate_among(machine, choice.cut.ranks());
  const auto tokens = static_cast<double>(w.tokens);
  const SentElements by_layer = sent_by_layer(choice.cut, work.shape, tokens);
  const SentElements by_head = sent_elements(choice.cut, head_product(work.shape, tokens));
  Passes passes;
  for (std::uint32_t l = part.first; l < part.end; ++l) {
    passes.forward.compute += w.blocks[l].forward_flops / rate;
    passes.backward.compute += w.blocks[l].backward_flops / rate;
    if (l == 0) continue;  // an embedding is looked up
    const bool head = l == w.head_layer();
    const SentElements& elements = head ? by_head : by_layer;
    passes.forward.tensor += elements.forward * sent;
    passes.backward.tensor += elements.backward * sent;
    if (head || choice.keeps_activations) continue;
    passes.backward.recompute += w.blocks[l].forward_flops / rate;
    passes.backward.tensor += elements.forward * sent;
  }
  return passes;
}

/// What the replicas of a stage send, in seconds (Rajbhandari et al. 2020, ZeRO, section 7): a ring
/// passes on all parameters but a rank's own part, once to reduce and once to gather.
struct DataSeconds {
  double each_forward = 0;
  double each_backward = 0;
  double after = 0;   ///< of the last backward on
  double before = 0;  ///< with the first forward
};

DataSeconds data_of_stage(const GridWork& work, const GridMachine& machine,
                          const GridChoice& choice, double parameters) {
  const double replicas = choice.replicas;
  const double rate = rate_among(machine, std::uint64_t{choice.cut.ranks()} * choice.replicas);
  const double once = choice.replicas == 1
                          ? 0
                          : parameters * element_bytes(work) * (replicas - 1) / replicas / rate;
  switch (choice.zero_stage) {
    case 0: return {.after = 2 * once};
    case 1: return {.after = once, .before = once};
    case 2: return {.each_backward = once, .before = once};
    default: return {.each_forward = once, .each_backward = 2 * once};
  }
}

/// Returns what is left of `traffic` that runs beside `pass`: no less than a layer's part, which
/// waits for the pass to begin or ends after it.
double exposed(double traffic, double pass, double layers) {
  return std::max(traffic / layers, traffic - pass * (1 - 1 / layers));
}

/// What a stage does in a step.
struct StageWork {
  StageSeconds passes;
  GridSeconds busy;
  double ends = 0;  ///< traffic of its replicas that no pass hides
};

StageWork work_of_stage(const GridWork& work, const GridPipeline& on, const GridMachine& machine,
                        const GridChoice& choice, std::uint32_t stage) {
  const double rounds = on.pipeline.rounds;
  const double parameters = parameters_of(work, on, choice.cut, stage);
  const DataSeconds data = data_of_stage(work, machine, choice, parameters);
  StageWork made;
  double layers = 0;
  double forward = 0;
  double backward = 0;
  for (std::size_t part = stage; part < on.parts.size(); part += choice.stages) {
    layers += on.parts[part].end - on.parts[part].first;
    const auto [f, b] = passes_through(work, machine, choice, on.parts[part]);
    const double pass_forward = std::max(f.sum(), data.each_forward / on.pipeline.chunks);
    const double pass_backward = std::max(b.sum(), data.each_backward / on.pipeline.chunks);
    // A pass takes some time, even one through an embedding.
    made.passes.forward.push_back(std::max(pass_forward, 1e-12));
    made.passes.backward.push_back(std::max(pass_backward, 1e-12));
    made.busy.compute += rounds * (f.compute + b.compute);
    made.busy.recompute += rounds * b.recompute;
    made.busy.tensor += rounds * (f.tensor + b.tensor);
    made.busy.data += rounds * (pass_forward - f.sum() + pass_backward - b.sum());
    forward += f.sum();
    backward += b.sum();
  }
  made.ends = exposed(data.before, forward, layers) + exposed(data.after, backward, layers);
  return made;
}

double update_seconds(const GridWork& work, const GridPipeline& on, const GridMachine& machine,
                      const GridChoice& choice, std::uint32_t stage) {
  const double parameters = parameters_of(work, on, choice.cut, stage);
  const double shards = choice.zero_stage >= 1 ? choice.replicas : 1;
  const double bytes = parameters * (kUpdateBytes + element_bytes(work)) / shards;
  return bytes / machine.device_update;
}

constexpr std::array<std::string_view, 6> kPartNames{"compute",      "memory", "tensor traffic",
                                                     "data traffic", "bubble", "update"};

std::string_view largest(const GridSeconds& s, std::size_t from) {
  const std::array parts{s.compute, s.recompute, s.tensor, s.data, s.bubble, s.update};
  const auto* const first = parts.begin() + from;
  return kPartNames[static_cast<std::size_t>(std::max_element(first, parts.end()) - parts.begin())];
}

}  // namespace

std::string_view GridSeconds::bound() const { return largest(*this, 0); }
std::string_view GridSeconds::largest_loss() const { return largest(*this, 1); }

GridPipeline pipeline_on(const GridWork& work, std::uint32_t replicas, std::uint32_t stages) {
  GridPipeline on;
  const bool piped = stages > 1;
  on.pipeline = {.schedule = piped ? work.schedule : PipelineSchedule::one_f_one_b,
                 .stages = stages,
                 .rounds = static_cast<std::uint32_t>(work.micro_batches / replicas),
                 .chunks = piped ? work.chunks : 1,
                 .tied_head = work.workload.tied_head};
  on.passes = passes_of(on.pipeline);
  on.parts = cut_layers(work.workload, on.pipeline);
  return on;
}

GridMemory memory_on(const GridWork& work, const GridPipeline& on, const GridChoice& choice) {
  const Workload& w = work.workload;
  const auto boundary = static_cast<double>(w.boundary_bytes.value());
  const double ranks = choice.cut.ranks();
  const double boundary_parts = choice.cut.cuts_boundaries() ? ranks : 1;
  // Beside what it reads, a layer saves one tensor as long as the model is wide: the residual in
  // its middle.
  const auto saved_by = [&](std::uint32_t layer) {
    const auto saved = static_cast<double>(w.blocks[layer].saved_bytes.value());
    const double middle = std::min(saved, boundary);
    return (saved - middle) / ranks + middle / boundary_parts;
  };
  const auto shared = [&](std::uint32_t from_stage) {
    return choice.zero_stage >= from_stage ? choice.replicas : 1.0;
  };
  GridMemory most;
  for (std::uint32_t stage = 0; stage < choice.stages; ++stage) {
    const double parameters = parameters_of(work, on, choice.cut, stage);
    GridMemory memory{.parameters = parameters * element_bytes(work) / shared(3),
                      .gradients = parameters * sizeof(float) / shared(2),
                      .state = parameters * kStateBytes / shared(1),
                      .workspace = static_cast<double>(w.workspace_bytes.value()) / ranks};
    double layer = 0;  // of the layer that saves most
    double block = 0;
    const double in_flight = rounds_in_flight(on.passes[stage]);
    for (std::size_t part = stage; part < on.parts.size(); part += choice.stages) {
      for (std::uint32_t l = on.parts[part].first; l < on.parts[part].end; ++l) {
        const double kept = choice.keeps_activations ? saved_by(l) : 0;
        const double read = l == 0 ? 0 : boundary / boundary_parts;
        memory.activations += in_flight * (kept + read);
        layer = std::max(layer, saved_by(l));
        block = std::max(block, static_cast<double>(w.blocks[l].parameters.value()));
      }
    }
    if (!choice.keeps_activations) memory.activations += layer;
    if (choice.zero_stage >= 3 && choice.replicas > 1) {
      memory.parameters += 2 * block / choice.cut.parameter_parts() * element_bytes(work);
    }
    if (memory.total() > most.total()) most = memory;
  }
  return most;
}

GridSeconds seconds_on(const GridWork& work, const GridPipeline& on, const GridMachine& machine,
                       const GridChoice& choice) {
  std::vector<StageSeconds> stages(choice.stages);
  GridSeconds longest;
  double ends = 0;
  double update = 0;
  for (std::uint32_t stage = 0; stage < choice.stages; ++stage) {
    StageWork made = work_of_stage(work, on, machine, choice, stage);
    if (stage == 0 || made.busy.step() > longest.step()) longest = made.busy;
    stages[stage] = std::move(made.passes);
    ends = std::max(ends, made.ends);
    update = std::max(update, update_seconds(work, on, machine, choice, stage));
  }
  // A message is what passes between two layers; each rank sends its part.
  const double parts = choice.cut.cuts_boundaries() ? choice.cut.ranks() : 1;
  const double message = choice.stages == 1
                             ? 0
                             : static_cast<double>(work.workload.boundary_bytes.value()) / parts /
                                   rate_among(machine, choice.ranks());
  const double passes = seconds_of(timeline_of(on.pipeline, on.passes, stages, message));
  longest.bubble = std::max(passes - longest.step(), 0.0);
  longest.data += ends;
  longest.update = update;
  return longest;
}

}  // namespace spillway::plan
