#include <fmt/format.h>

#include <array>

#include "runtime/config/detail/option_builders.hpp"

namespace spillway::config::detail {
namespace {

/// A commit names the layers of each.
constexpr double kMostChunks = 128;
constexpr double kMostStepsOfSums = 10'000;

using nlohmann::json;
using Options = TrainOptions;

constexpr std::string_view kOwn = "spillway";
constexpr double kMostSteps = 0xffff'ffff;
constexpr double kMostTileParameters = 0x1p40;

bool on_cuda(const Options& options) { return options.device == DeviceKind::cuda; }
bool on_host(const Options& options) { return !on_cuda(options); }
bool is_tf32(const Options& options) { return on_cuda(options) && options.compute == DType::fp32; }
bool is_delayed(const Options& options) { return options.update == UpdateMode::delayed; }
bool is_stale(const Options& options) { return has_stale_weights(options.pipeline.schedule); }

json value_of_parts(const Option&, const Options& options) {
  const std::vector<std::uint32_t>& parts = options.pipeline.parts;
  return parts.empty() ? json() : json(parts);
}

/// fp16.enabled and bf16.enabled, which are read before, and `compute` say one thing together.
void read_compute(ConfigFile& file, const Option& self, Options& options) {
  const json* const given = file.value(self, options);
  const bool enabled = options.compute != DType::fp32;
  if (given != nullptr && enabled && *given != config_name(options.compute)) {
    file.refuse_value(self, fmt::format("nothing: {} is enabled", config_name(options.compute)));
  }
  if (given != nullptr) options.compute = from_json<DType>(*given);
  if (given != nullptr || enabled) {
    for (const char* const path : {"fp16.enabled", "bf16.enabled", "bfloat16.enabled"}) {
      if (!file.is_auto(*find_option(path))) continue;
      file.note(path,
                fmt::format("\"auto\" is false: the type is {}", config_name(options.compute)));
    }
    options.automatic.compute = options.automatic.fp16 = false;
  }
  options.automatic.state_format = options.automatic.compute && !file.has("spillway.state_format");
  // The same bits as fp32, in two bytes less; an explicit spillway.state_format replaces it.
  if (options.compute == DType::bf16) options.state_format = StateFormat::split;
}

/// An optimizer of DeepSpeed's has all parameters in one group; HF Trainer makes two.
void read_decay(ConfigFile& file, const Option& self, Options& options) {
  read_member<&Options::decay>(file, self, options);
  if (file.has(self.path()) || options.adam.weight_decay == 0) return;
  file.note(self.path(),
            "absent: biases and norms are not decayed, as by HF Trainer; DeepSpeed "
            "decays all parameters, as \"all\" does");
}

/// Paths also say that state goes to disk; an empty array says nothing.
void read_nvme(ConfigFile& file, const Option& self, Options& options) {
  const json* const paths = file.value(self, options);
  if (paths == nullptr) return;
  options.nvme.clear();
  for (const json& path : paths->is_array() ? *paths : json::array({*paths})) {
    options.nvme.emplace_back(path.get<std::string>());
  }
  if (!options.nvme.empty()) options.state_home = StateHome::nvme;
}

json value_of_nvme(const Option&, const Options& options) {
  json paths = json::array();
  for (const std::filesystem::path& path : options.nvme) paths.push_back(path.string());
  return paths.empty() ? json() : paths;
}

void add_arithmetic(std::vector<Option>& table) {
  Rows rows(table, {.section = kOwn});
  rows.member<&Options::compute>(
          {"compute",
           "Parameters and activations have this type where neither `bf16` nor `fp16` is enabled."})
      .read = read_compute;
  rows.member<&Options::device>(
          {"device", "The model computes on this device; `cuda` is the GPU, `host` the CPU.",
           "`cuda` where a GPU is usable, else `host`"})
      .automatic = "what is usable here";
  rows.member<&Options::deterministic>(
          {"deterministic",
           "On a GPU, every sum has a fixed order, so that runs can be repeated bit for bit."})
      .counts = on_cuda;
  rows.member<&Options::tf32>({"tf32",
                               "On a GPU, matrix products of fp32 are computed in TF32, which has "
                               "10 bits of mantissa."})
      .counts = is_tf32;
  rows.member<&Options::attention>(
          {"attention",
           "On a GPU, attention is cuDNN's for the shapes that it takes (`auto`), or always by our "
           "own kernels (`own`), which are far slower."})
      .counts = on_cuda;
}

void add_mathematics(std::vector<Option>& table) {
  Rows rows(table, {.section = kOwn});
  rows.member<&Options::context>(
          {"context", "The model sees windows of this many tokens.", "the model's positions"})
      .automatic = "the model's";
  rows.member<&Options::rounds>(
          {"rounds",
           "A step passes this often through the model; the number divides "
           "`gradient_accumulation_steps`. With \"auto\", it and a micro-batch that is chosen are "
           "those with which a step is simulated to take least; what is chosen is recorded.",
           "1; \"auto\" where micro-batch and accumulation are chosen"},
          whole<std::uint32_t>(1))
      .automatic = automatic::kChosenLater;
  rows.member<&Options::sum_order>(
      {"sum_order",
       "Gradients add up in an order that is `fast` for the number of ranks, or in one that is "
       "`fixed`: then each micro-batch is a round, and as many micro-batches a step give the same "
       "bits on any number of ranks."});
  rows.member<&Options::tokens_per_step>(
          {"tokens_per_step",
           "Where micro-batch and accumulation are absent or \"auto\", they are chosen for this "
           "many tokens a step; what is chosen is recorded.",
           "0: 8 windows"})
      .part = Part::free;
  rows.member<&Options::decay>({"decay",
                                "Weight decay applies to these parameters; with `matrices`, biases "
                                "and norms are not decayed."})
      .read = read_decay;
  rows.member<&Options::state_format>({"state_format",
                                       "The optimizer's state is kept in this format; "
                                       "[user-guide.md](user-guide.md) compares them.",
                                       "split with bf16 compute, else fp32"});
  rows.member<&Options::order>(
      {"order", "The run trains on the windows of the data in this order; they never overlap."});
  rows.member<&Options::seed>(
      {"seed", "Initialisation, data order and stochastic rounding start from this seed."});
  rows.member<&Options::tile_parameters>({"tile_parameters",
                                          "The optimizer's state is updated and stored in tiles of "
                                          "this many parameters, a multiple of 4096."},
                                         whole<std::uint64_t>(kLeafParameters, kMostTileParameters))
      .part = Part::layout;
  rows.member<&Options::operator_tile>(
      {"operator_tile",
       "Layers that are larger than the device are streamed in parts of at most this many "
       "parameters, which rounds differently.",
       "0: layers are streamed whole"},
      whole<std::uint64_t>(0, kMostTileParameters));
  rows.member<&Options::delayed_from>(
          {"delayed_from",
           "With `update` `delayed`, forward and backward of this step and of later ones lack the "
           "update of the step before, as in ZeRO-Offload; earlier steps are those of `deferred`."},
          whole<std::uint64_t>(1, kMostSteps))
      .counts = is_delayed;
  Option& threads = rows.member<&Options::compute_threads>(
      {"compute_threads", "Forward and backward on the host use this many threads.",
       "0: every physical core"});
  threads.counts = on_host;
  threads.automatic = "every physical core";
}

void add_pipeline_ways(std::vector<Option>& table) {
  Rows(table, {.section = kOwn})
      .member<&Options::pipeline, &PipelineOptions::schedule>(
          {"pipeline_schedule",
           "The stages of a pipeline run their passes in this order. With `pipedream` and "
           "`pipedream_2bw` they use stale weights, which is other mathematics, and recorded; the "
           "others give the same bits, and a resumed run may change one for another."})
      .counts = is_stale;
  Rows(table, {.section = kOwn, .part = Part::layout})
      .member<&Options::pipeline, &PipelineOptions::chunks>(
          {"pipeline_chunks",
           "A stage of a pipeline has so many parts of the model, in turn with the other stages; "
           "more than one needs the schedule `interleaved`."},
          whole<std::uint32_t>(1, kMostChunks));
  Domain parts = whole<std::uint32_t>(1);
  parts.kind = Kind::wholes;
  Rows(table, {.section = kOwn, .part = Part::layout})
      .own({"pipeline_parts",
            "The parts of a pipeline have so many layers each, in the model's order, embedding and "
            "head counted; part i is of stage i, modulo the stages.",
            "planned: simulated to be busy equally long; with stale weights, equal FLOPs"},
           parts, read_member<&Options::pipeline, &PipelineOptions::parts>, value_of_parts);
  Rows(table, {.section = kOwn, .part = Part::free})
      .member<&Options::pipeline, &PipelineOptions::meet_every>(
          {"pipeline_meet_every",
           "The stages of a pipeline with stale weights bring losses and norms together each time "
           "after this many steps, and wait for each other; with `gradient_clipping` or fp16 that "
           "is after each step.",
           "0: planned, so that it costs 1 % of the time"},
          whole<std::uint32_t>(0, kMostStepsOfSums))
      .automatic = "planned";
  Rows(table, {.section = kOwn, .part = Part::mathematics})
      .member<&Options::tensor, &TensorOptions::sequence>(
          {"sequence_parallel",
           "The ranks of a tensor group share out the tokens of norms and of what lies between "
           "blocks, and gather them for matrices (Megatron-LM)."});
}

void add_placement(std::vector<Option>& table) {
  Rows rows(table, {.section = kOwn, .part = Part::free});
  rows.member<&Options::update>({"update",
                                 "A block is updated during the next step's forward (`deferred`); "
                                 "with all state on disk, the last blocks during backward already, "
                                 "as if nothing were clipped, and once more if something is "
                                 "(`speculative`, the same bits). `auto` is `deferred`. With "
                                 "`delayed` an update may take the next step's whole forward and "
                                 "backward, which lack it: other mathematics, and recorded."});
  rows.member<&Options::work_order>({"work_order",
                                     "A round finishes one layer for all micro-batches first, or "
                                     "one micro-batch through all layers."});
  rows.member<&Options::checkpointing>(
      {"checkpointing",
       "The activations inside a layer are computed again in backward (`recompute`), stay on the "
       "device (`keep`), or wait in host memory (`offload`) or on disk (`nvme`) as far as they do "
       "not fit.",
       "auto: layer by layer what makes the shortest step"});
  rows.member<&Options::residency>(
      {"residency", "Parameters stay on the device (`all`), or every block is streamed (`none`)."});
  rows.member<&Options::prefetch>(
          {"prefetch",
           "Blocks are uploaded to the device, or gathered from other ranks, this many blocks "
           "ahead of their use; fewer where the device has no room.",
           fmt::format("{}; where ranks share out parameters, what makes the shortest step",
                       plan::kUsualPrefetch)})
      .automatic = "what the planner finds";
  rows.member<&Options::device_memory>(
      {"device_memory", "The run may take this much memory of the device.", "what the device has"});
  rows.member<&Options::host_memory>(
      {"host_memory", "The run may take this much host memory.", "what cgroup and system leave"});
  rows.own({"nvme",
            "All optimizer state lives on disk, in these directories, which ranks of one machine "
            "share out.",
            "`RUN/state`"},
           {.kind = Kind::paths}, read_nvme, value_of_nvme);
  rows.member<&Options::state_home>(
      {"state_home", "The optimizer's state lives in this tier of memory."});
  rows.member<&Options::activations>(
      {"activations", "The activations between blocks wait for backward in this tier of memory.",
       "auto: off the device only where it is too small"});
  rows.member<&Options::gradient_sums>(
      {"gradient_sums",
       "With several `rounds`, gradients are added up in fp32 in this memory; for blocks whose "
       "state is on the device it is always the device."});
  rows.member<&Options::io_engine>({"io_engine",
                                    "The disk is read and written through this interface of Linux.",
                                    "auto: the best that the kernel offers"});
  rows.member<&Options::threads>(
          {"threads", "The update on the CPU uses this many threads.", "0: every physical core"})
      .automatic = "every physical core";
  rows.member<&Options::isa>(
          {"isa", "The update on the CPU uses this instruction set.", "the processor's best"})
      .automatic = "the processor's best";
  rows.member<&Options::host_link_gbps>(
      {"host_link_gbps",
       "The link of the host backend is slowed down to this many gigabytes a second.",
       "not throttled"},
      kPositive);
  rows.member<&Options::disk_gbps>(
      {"disk_gbps", "The disk is slowed down to this many gigabytes a second.", "not throttled"},
      kPositive);
  rows.member<&Options::timeout>(
      {"timeout", "The job ends with an error when a rank is late by this many seconds.",
       "what SPILLWAY_TIMEOUT says, else 300"},
      whole<std::uint32_t>(1, 604'800));
}

void add_writing(std::vector<Option>& table) {
  Rows rows(table, {.section = kOwn, .part = Part::free});
  rows.member<&Options::steps>(
          {"steps", "The run ends after this many optimizer steps.", "0: one epoch"},
          whole<std::uint64_t>(0, kMostSteps))
      .automatic = "one epoch";
  rows.member<&Options::commit_every>(
          {"commit_every", "The run commits its state to disk each time after this many steps.",
           "1 with all state on disk, else planned"})
      .automatic = "planned";
  rows.member<&Options::save_every>(
      {"save_every", "The run keeps a checkpoint each time after this many steps.", "0: none"});
  rows.member<&Options::keep>(
      {"keep", "The run keeps this many of the newest checkpoints and removes older ones."});
  rows.member<&Options::eval_every>({"eval_every",
                                     "The run evaluates the model each time after this many steps.",
                                     "0: at the end only"});
}

}  // namespace

void add_spillway(std::vector<Option>& table) {
  add_arithmetic(table);
  add_mathematics(table);
  add_pipeline_ways(table);
  add_placement(table);
  add_writing(table);
}

}  // namespace spillway::config::detail
