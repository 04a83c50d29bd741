// `spillway bench step`: the flags and the table around tools/bench/step_bench.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "runtime/base/error.hpp"
#include "runtime/base/topology.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/plan/predict/flops.hpp"
#include "tools/bench/median.hpp"
#include "tools/bench/model_shapes.hpp"
#include "tools/bench/peak_flops.hpp"
#include "tools/bench/step_bench.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/train_flags.hpp"

namespace spillway::cli {
namespace {

using bench::StepBenchResult;
using nlohmann::ordered_json;

/// Nothing where the environment names a directory that is not there.
std::filesystem::path temporary_directory() {
  std::error_code missing;
  return std::filesystem::temp_directory_path(missing);
}

struct BenchStepFlags {
  TrainFlags train;
  std::string compute = "bf16";
  std::string format;
  std::uint32_t context = 0;
  std::uint32_t micro_batch = 0;
  std::uint64_t tokens_per_step = 0;
  std::uint32_t rounds = 1;
  double clip = 1.0;
  std::optional<double> clip_share;
  bool commit = false;
  std::uint64_t warmup = 1;
  std::uint32_t ranks = 1;
  std::uint32_t stage = 0;
  std::uint32_t tensor = 1;
  bool by_tokens = false;
  std::uint32_t stages = 1;
  std::optional<double> link;
  bool limit = false;
  std::filesystem::path scratch = temporary_directory();
};

/// What the step is measured against: a data sheet's figure, or the device's own matrix product.
struct Peak {
  double flops = 0;
  std::string_view basis;
};

constexpr std::uint32_t kSmallContext = 256;
constexpr std::uint32_t kDefaultMicroBatch = 8;
constexpr std::uint64_t kDefaultTokens = 4096;
constexpr std::uint64_t kDefaultSteps = 4;

/// Returns the number of ranks that have micro-batches of their own.
std::uint32_t replicas_of(const BenchStepFlags& flags) {
  const std::uint32_t sharing = flags.tensor * flags.stages;
  check(flags.ranks % sharing == 0, ErrorCode::invalid_argument,
        fmt::format("--ranks {} is not a multiple of --tensor {} x --pipeline {}", flags.ranks,
                    flags.tensor, flags.stages));
  return flags.ranks / sharing;
}

config::TrainOptions options_of(const BenchStepFlags& flags) {
  config::TrainOptions options = flags.train.options();
  const bool small = flags.train.model == "small";
  options.compute = parse_dtype(flags.compute);
  const bool narrow = options.compute == DType::bf16;
  options.state_format = flags.format.empty() ? (narrow ? StateFormat::split : StateFormat::fp32)
                                              : parse_state_format(flags.format);
  options.context = flags.context > 0 ? flags.context : (small ? kSmallContext : 0);
  if (options.context == 0) {
    options.context = std::min(4096U, bench::model_from(flags.train.model).max_context);
  }
  options.micro_batch =
      flags.micro_batch > 0 ? flags.micro_batch : (small ? kDefaultMicroBatch : 1);
  const std::uint64_t tokens = flags.tokens_per_step > 0 ? flags.tokens_per_step : kDefaultTokens;
  const double micro_batches =
      static_cast<double>(tokens) /
      (static_cast<double>(options.micro_batch) * options.context * replicas_of(flags));
  // The nearest whole number of micro-batches that the rounds divide.
  const double per_round = std::max(1.0, std::round(micro_batches / flags.rounds));
  options.rounds = flags.rounds;
  check(per_round * flags.rounds <= std::numeric_limits<std::uint32_t>::max(),
        ErrorCode::invalid_argument,
        fmt::format("{} rounds of {:.0f} micro-batches are more than a step can have: lower "
                    "--tokens-per-step or --rounds",
                    flags.rounds, per_round));
  options.gradient_accumulation_steps = static_cast<std::uint32_t>(per_round) * flags.rounds;
  options.gradient_clipping = flags.clip;
  options.commits = flags.commit;
  options.zero_stage = flags.stage;
  options.tensor = {.ranks = flags.tensor, .sequence = flags.by_tokens};
  options.pipeline.stages = flags.stages;
  if (options.steps == 0) options.steps = kDefaultSteps;
  return options;
}

Peak peak_of(const bench::StepBenchRequest& request, const StepBenchResult& result) {
  if (const auto known = bench::peak_flops(result.device, result.plan.options.compute)) {
    return {*known, "data sheet"};
  }
  if (result.device == "host") {
    return {bench::product_flops(request) * request.ranks, "measured matrix product"};
  }
  return {};
}

ordered_json by_lane(const auto& values, const auto& convert) {
  ordered_json document = ordered_json::object();
  for (std::size_t lane = 0; lane < plan::kMachineLanes; ++lane) {
    document[std::string(plan::name_of(static_cast<plan::Lane>(lane)))] = convert(values[lane]);
  }
  return document;
}

ordered_json placement_json(const StepBenchResult& result) {
  const auto count = [&](const auto& predicate) {
    return std::ranges::count_if(result.plan.placement.blocks, predicate);
  };
  const auto lives = [&](plan::Tier tier) {
    return count([tier](const plan::BlockCut& b) { return b.state == tier; });
  };
  const auto waits = [&](plan::Tier tier) {
    return count([tier](const plan::BlockCut& b) { return b.output == tier; });
  };
  return {{"blocks", result.plan.placement.blocks.size()},
          {"resident", count([](const plan::BlockCut& b) { return b.resident(); })},
          {"keep_activations", count([](const plan::BlockCut& b) { return b.saved.has_value(); })},
          {"offload_activations", count([](const plan::BlockCut& b) {
             return b.saved.value_or(plan::Tier::device) != plan::Tier::device;
           })},
          {"state_device", lives(plan::Tier::device)},
          {"state_host", lives(plan::Tier::host)},
          {"state_nvme", lives(plan::Tier::nvme)},
          {"activations_device", waits(plan::Tier::device)},
          {"activations_host", waits(plan::Tier::host)},
          {"activations_nvme", waits(plan::Tier::nvme)}};
}

std::uint64_t parameters_of(const plan::Workload& workload) {
  std::uint64_t sum = 0;
  for (const plan::BlockShape& block : workload.blocks) sum += block.parameters.value();
  return sum;
}

ordered_json describe(const BenchStepFlags& flags, const model::ModelConfig& config,
                      const StepBenchResult& result) {
  const config::TrainOptions& o = result.plan.options;
  return {{"bench", "step"},
          {"model", flags.train.model.string()},
          {"parameters", parameters_of(result.plan.workload)},
          {"layers", config.layers},
          {"device", result.device},
          {"cpu", read_topology().cpu_model},
          {"compute", name_of(o.compute)},
          {"state_format", name_of(o.state_format)},
          {"context", o.context},
          {"micro_batch", o.micro_batch},
          {"micro_batches_per_round", result.plan.workload.micro_batches},
          {"rounds", o.rounds},
          {"tokens_per_step", result.tokens_per_step()},
          {"clip", o.gradient_clipping},
          {"clipped_steps", result.clipped_steps()},
          {"updates_ahead",
           {{"kept", result.count(engine::UpdatesAhead::kept)},
            {"undone", result.count(engine::UpdatesAhead::undone)},
            {"paused", result.count(engine::UpdatesAhead::paused)}}},
          {"commits", o.commits},
          {"threads", o.threads},
          {"compute_threads", o.compute_threads},
          {"warmup", flags.warmup},
          {"ranks", flags.ranks},
          {"tensor_ranks", flags.tensor},
          {"by_tokens", flags.by_tokens},
          {"pipeline_stages", flags.stages},
          {"zero_stage", flags.stage},
          {"measured_products", result.measured_products}};
}

void add_speed(ordered_json& document, const model::ModelConfig& config,
               const StepBenchResult& result, const Peak& peak) {
  const double rate = result.tokens_per_second();
  const double flops =
      plan::flops_per_token(engine::decoder_shape(config, result.plan.options.context));
  const double predicted = result.plan.prediction.step_seconds;
  document["tokens_per_second"] = rate;
  document["step_seconds"] = {{"median", result.median_seconds()}, {"each", result.seconds}};
  document["predicted_step_seconds"] = predicted;
  document["measured_over_predicted"] = result.median_seconds() / predicted;
  document["model_flops_per_token"] = flops;
  document["model_tflops"] = rate * flops * 1e-12;
  document["mfu"] = peak.flops > 0 ? ordered_json(rate * flops / peak.flops) : nullptr;
  document["peak_tflops"] = peak.flops > 0 ? ordered_json(peak.flops * 1e-12) : nullptr;
  document["peak_basis"] = peak.basis;
}

void add_resources(ordered_json& document, const StepBenchResult& result) {
  document["device_idle_share"] = bench::median_of(result.idle_shares);
  document["exposed_seconds"] = by_lane(result.median_exposed(), [](double s) { return s; });
  document["bytes_moved"] = by_lane(result.moved, [](Bytes b) { return b.value(); });
  for (const bench::TierUse& use : result.tiers) {
    document["memory"][std::string(plan::name_of(use.tier))] = {
        {"high_water", use.high_water.value()},
        {"planned", use.planned.value()},
        {"budget", use.budget.value()}};
  }
  document["placement"] = placement_json(result);
  document["loss"] = {{"first", result.first_loss}, {"last", result.last_loss}};
}

void print(const ordered_json& d) {
  const auto text = [&](const char* key) { return d[key].get<std::string>(); };
  answer("model      {}: {:.2f} M parameters, {} compute, state format {}, on {}\n", text("model"),
         d["parameters"].get<double>() * 1e-6, text("compute"), text("state_format"),
         text("device"));
  answer("step       {} tokens: {} round(s) of {} micro-batch(es) of {} x {}\n",
         d["tokens_per_step"].get<std::uint64_t>(), d["rounds"].get<std::uint32_t>(),
         d["micro_batches_per_round"].get<std::uint32_t>(), d["micro_batch"].get<std::uint32_t>(),
         d["context"].get<std::uint32_t>());
  if (d["ranks"].get<std::uint32_t>() > 1) {
    answer("ranks      {}, stage {}; {} share out matrices{}, and {} stage(s) layers\n",
           d["ranks"].get<std::uint32_t>(), d["zero_stage"].get<std::uint32_t>(),
           d["tensor_ranks"].get<std::uint32_t>(), d["by_tokens"].get<bool>() ? " and tokens" : "",
           d["pipeline_stages"].get<std::uint32_t>());
  }
  answer("speed      {:.0f} tokens/s, {:.4f} s a step (predicted {:.4f}), {:.3f} model TFLOP/s\n",
         d["tokens_per_second"].get<double>(), d["step_seconds"]["median"].get<double>(),
         d["predicted_step_seconds"].get<double>(), d["model_tflops"].get<double>());
  if (!d["mfu"].is_null()) {
    answer("mfu        {:.3f} of {:.3f} TFLOP/s ({})\n", d["mfu"].get<double>(),
           d["peak_tflops"].get<double>(), text("peak_basis"));
  }
  answer("idle       {:.1f} % of a step the device has nothing to do\n",
         100 * d["device_idle_share"].get<double>());
  if (d.contains("resident")) {
    answer("limit      {:.3f} of {:.0f} tokens/s with the model resident and no optimizer\n",
           d["fraction_of_limit"].get<double>(), d["resident"]["tokens_per_second"].get<double>());
  }
  for (const auto& [tier, use] : d["memory"].items()) {
    answer("{:<10} {} used, {} planned, of {}\n", tier,
           format_bytes(Bytes{use["high_water"].get<std::uint64_t>()}),
           format_bytes(Bytes{use["planned"].get<std::uint64_t>()}),
           format_bytes(Bytes{use["budget"].get<std::uint64_t>()}));
  }
  answer("lanes      {:<12} {:>10} {:>12}\n", "", "exposed s", "moved");
  for (const auto& [lane, seconds] : d["exposed_seconds"].items()) {
    const Bytes moved{d["bytes_moved"][lane].get<std::uint64_t>()};
    if (lane == "gpu" || (seconds.get<double>() <= 0 && moved == Bytes{})) continue;
    answer("           {:<12} {:>10.4f} {:>12}\n", lane, seconds.get<double>(),
           format_bytes(moved));
  }
  answer("loss       {:.4f} at first, {:.4f} at last\n", d["loss"]["first"].get<double>(),
         d["loss"]["last"].get<double>());
}

ordered_json run(const BenchStepFlags& flags, bool json) {
  check(!flags.limit || flags.tensor * flags.stages == 1, ErrorCode::invalid_argument,
        "--limit runs the whole model on one rank; remove it, or --tensor and --pipeline");
  const double share = flags.clip_share.value_or(0);
  check(share >= 0 && share <= 1, ErrorCode::invalid_argument,
        fmt::format("--clip-share {} is not a share of the steps: use 0 to 1", share));
  check(!flags.scratch.empty(), ErrorCode::invalid_argument,
        "TMPDIR names no directory, and a temporary run needs one; name it with --scratch");
  const bench::StepBenchRequest request{
      .config = *flags.train.model_config(),
      .options = options_of(flags),
      .warmup = flags.warmup,
      .clip_share = flags.clip_share,
      .ranks = flags.ranks,
      .link_gigabytes_per_second = flags.link,
      .scratch = flags.scratch,
      .profile = flags.train.profile,
      .note = [](const std::string& text) { tell("note: {}\n", text); }};
  const StepBenchResult result = bench::bench_step(request);
  const Peak peak = peak_of(request, result);
  ordered_json document = describe(flags, request.config, result);
  add_speed(document, request.config, result, peak);
  add_resources(document, result);
  document["fraction_of_limit"] = document["mfu"];
  if (flags.limit) {
    const double seconds = bench::resident_seconds(request);
    const double rate = static_cast<double>(result.plan.workload.tokens) * flags.ranks / seconds;
    document["resident"] = {{"micro_batch_seconds", seconds}, {"tokens_per_second", rate}};
    document["fraction_of_limit"] = result.tokens_per_second() / rate;
  }
  if (!json) print(document);
  return document;
}

/// What an update waits for, and how fast the disk is that it uses.
void add_update_flags(Command command, BenchStepFlags& flags) {
  const Argument clip = command.add_option(
      "--clip", flags.clip, "Gradients with a larger norm are clipped; 0 never clips");
  clip.capture_default();
  command
      .add_option("--clip-share", flags.clip_share,
                  "This share of the measured steps is clipped, from 0 to 1, by a limit that the "
                  "norms of a run before give; no step changes a parameter then")
      .excludes(clip);
  flags.train.set.add(command, "update");
  flags.train.set.add(command, "delayed_from");
  flags.train.set.add(command, "disk_gbps");
  command.add_flag("--commit", flags.commit, "Steps are committed to the disk, as `train` does it");
}

}  // namespace

void add_bench_step(Command bench, Session& session) {
  auto flags = std::make_shared<BenchStepFlags>();
  flags->train.model = "small";
  Command command =
      add_command(bench, session, "step",
                  "Measures training steps on random tokens and weights, and leaves nothing behind",
                  [flags, &session] { return run(*flags, session.json); });
  flags->train.add_model_to(command).capture_default();
  flags->train.add_machine_to(command);
  command.add_option(
      "--context", flags->context,
      "A window has this many tokens; by default 256 for `small`, else at most 4096");
  command.add_option("--micro-batch", flags->micro_batch,
                     "A micro-batch has this many windows; by default 8 for `small`, else 1");
  command.add_option(
      "--tokens-per-step", flags->tokens_per_step,
      "A step has this many tokens, rounded to whole micro-batches; by default 4096");
  command.add_option("--rounds", flags->rounds, "A step passes this often through the model")
      .positive()
      .capture_default();
  command
      .add_option("--compute", flags->compute,
                  "Parameters and activations have this type: fp32, bf16 or fp16")
      .capture_default();
  command.add_option(
      "--state-format", flags->format,
      "The optimizer's state has this format: fp32, split, bf16 or int8; by default split "
      "with bf16, else fp32");
  add_update_flags(command, *flags);
  flags->train.set.add(command, "steps").description("This many steps are measured; by default 4");
  command.add_option("--warmup", flags->warmup, "This many steps run before them")
      .capture_default();
  flags->train.set.add(command, "prefetch");
  flags->train.set.add(command, "seed").description("The tokens are drawn from this seed");
  command
      .add_option("--ranks", flags->ranks,
                  "This many ranks, threads of this process, share the tokens of a step")
      .range(1, 1024)
      .capture_default();
  command.add_option("--stage", flags->stage, "Ranks hold one part each as this stage of ZeRO says")
      .range(0, 3)
      .capture_default();
  command
      .add_option("--tensor", flags->tensor,
                  "So many ranks in a row share out every matrix, as in Megatron-LM")
      .range(1, 1024)
      .capture_default();
  command.add_flag("--by-tokens", flags->by_tokens,
                   "With --tensor, they share out tokens too, where matrices do not need all");
  command.add_option("--pipeline", flags->stages, "The layers are cut into so many stages")
      .range(1, 1024)
      .capture_default();
  command.add_option("--link", flags->link,
                     "A rank sends and receives this many GB/s; by default as memory allows");
  command.add_flag(
      "--limit", flags->limit,
      "Forward and backward are measured too, alone and with the whole model resident: "
      "fraction_of_limit");
  command.add_option("--scratch", flags->scratch, "The temporary run lies in this directory")
      .existing_directory()
      .capture_default();
}

}  // namespace spillway::cli
