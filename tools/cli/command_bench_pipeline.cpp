// `spillway bench pipeline`: the table around tools/bench/pipeline_bench.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <vector>

#include "tools/bench/pipeline_bench.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"

namespace spillway::cli {
namespace {

using nlohmann::ordered_json;
using plan::PipelineSchedule;

struct BenchPipelineFlags {
  std::uint32_t stages = 4;
  std::uint32_t rounds = 8;
  std::uint32_t chunks = 2;
  std::uint32_t steps = 3;
  double forward_ms = 20;
  double backward_ms = 40;
};

std::vector<bench::PipelineCase> cases_of(const BenchPipelineFlags& flags) {
  std::vector<bench::PipelineCase> cases;
  const auto add = [&](PipelineSchedule schedule, bool clips) {
    const bool interleaved = schedule == PipelineSchedule::interleaved;
    const bool each = schedule == PipelineSchedule::pipedream;  // a step is one round
    const std::uint32_t meetings = !clips ? 1 : each ? flags.steps * flags.rounds : flags.steps;
    cases.push_back({.pipeline = {.schedule = schedule,
                                  .stages = flags.stages,
                                  .rounds = each ? 1 : flags.rounds,
                                  .chunks = interleaved ? flags.chunks : 1},
                     .forward_seconds = flags.forward_ms * 1e-3,
                     .backward_seconds = flags.backward_ms * 1e-3,
                     .clips = clips,
                     .meetings = meetings});
  };
  for (const auto schedule : {PipelineSchedule::naive, PipelineSchedule::f_then_b,
                              PipelineSchedule::one_f_one_b, PipelineSchedule::interleaved}) {
    add(schedule, /*clips=*/true);
  }
  for (const auto schedule : {PipelineSchedule::pipedream, PipelineSchedule::pipedream_2bw}) {
    add(schedule, /*clips=*/true);
    add(schedule, /*clips=*/false);
  }
  return cases;
}

std::string name_of(const bench::PipelineCase& what) {
  const bool stays_full = plan::has_stale_weights(what.pipeline.schedule);
  return fmt::format("{}{}", plan::name_of(what.pipeline.schedule),
                     stays_full && what.clips ? ", clipped" : "");
}

/// Returns how far the measured bubble is from the published one, as a share of that; where there
/// is none, as a share of the passes.
double error_of(const bench::PipelineMeasurement& measured) {
  const double difference = std::abs(measured.bubble() - measured.published_bubble);
  return measured.published_bubble > 0 ? difference / measured.published_bubble : difference;
}

ordered_json run(const BenchPipelineFlags& flags, bool json) {
  ordered_json document{{"bench", "pipeline"},
                        {"stages", flags.stages},
                        {"rounds", flags.rounds},
                        {"forward_ms", flags.forward_ms},
                        {"backward_ms", flags.backward_ms}};
  const std::vector<bench::PipelineCase> cases = cases_of(flags);
  for (const bench::PipelineCase& what : cases) std::ignore = passes_of(what.pipeline);
  double worst = 0;
  std::uint32_t wrong = 0;
  if (!json) {
    answer("{:<26}{:>12}{:>12}{:>12}{:>8}{:>14}{:>10}\n", "schedule", "published", "simulated",
           "measured", "error", "activations", "measured");
  }
  for (const bench::PipelineCase& what : cases) {
    const bench::PipelineMeasurement measured = bench::measure_pipeline(what);
    worst = std::max(worst, error_of(measured));
    if (measured.activations != measured.published_activations) ++wrong;
    document["results"].push_back({{"schedule", name_of(what)},
                                   {"published_bubble", measured.published_bubble},
                                   {"simulated_bubble", measured.simulated_bubble},
                                   {"bubble", measured.bubble()},
                                   {"bubbles", measured.bubbles},
                                   {"error", error_of(measured)},
                                   {"published_activations", measured.published_activations},
                                   {"activations", measured.activations}});
    if (json) continue;
    answer("{:<26}{:>12.4f}{:>12.4f}{:>12.4f}{:>8.3f}{:>14}{:>10}\n", name_of(what),
           measured.published_bubble, measured.simulated_bubble, measured.bubble(),
           error_of(measured), measured.published_activations, measured.activations);
  }
  document["worst_error"] = worst;
  document["wrong_activations"] = wrong;
  return document;
}

}  // namespace

void add_bench_pipeline(Command bench, Session& session) {
  auto flags = std::make_shared<BenchPipelineFlags>();
  Command command = add_command(bench, session, "pipeline",
                                "Measures the bubble of each schedule of a pipeline, with passes "
                                "that only take their time, against the published formulas",
                                [flags, &session] { return run(*flags, session.json); });
  command.add_option("--stages", flags->stages, "There are this many stages, a thread each")
      .range(2, 1024)
      .capture_default();
  command
      .add_option("--rounds", flags->rounds,
                  "A step has this many rounds, a multiple of the number of stages")
      .positive()
      .capture_default();
  command.add_option("--chunks", flags->chunks, "An interleaved stage has this many chunks")
      .positive()
      .capture_default();
  command
      .add_option("--steps", flags->steps,
                  "So many steps are measured, behind one that is not; without clipping, stages "
                  "with stale weights are measured from one meeting to the next")
      .positive()
      .capture_default();
  command.add_option("--forward-ms", flags->forward_ms, "A round takes a stage so long forward")
      .positive()
      .capture_default();
  command.add_option("--backward-ms", flags->backward_ms, "A round takes a stage so long backward")
      .positive()
      .capture_default();
}

}  // namespace spillway::cli
