#include "tools/cli/picture/run_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <vector>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/engine/run/directory.hpp"
#include "tools/cli/picture/measured_step.hpp"
#include "tools/cli/picture/step_picture.hpp"
#include "tools/cli/plan_text.hpp"

namespace spillway::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr Bytes kLongestPlan{std::uint64_t{256} << 20};
constexpr Bytes kLongestMetrics{std::uint64_t{16} << 30};
/// More points than a curve of a page can show.
constexpr std::size_t kMostPoints = 1000;

/// A line of metrics.jsonl.
struct MetricsLine {
  std::uint64_t step = 0;
  double loss = 0, norm = 0, rate = 0, tokens = 0, seconds = 0;
};

double number(const json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : std::nan("");
}

struct Metrics {
  std::vector<MetricsLine> lines;
  ordered_json validation = ordered_json::array();
  std::uint64_t skipped = 0;
};

/// A line that a kill has torn, or that is damaged, is passed over, as by a run that goes on.
Metrics metrics_of(const fs::path& path) {
  Metrics metrics;
  if (!is_there(path)) return metrics;
  std::istringstream file(read_text_file(path, kLongestMetrics));
  for (std::string text; std::getline(file, text);) {
    const json line = json_or_null(text);
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number_unsigned()) continue;
    const std::uint64_t step = line["step"];
    metrics.lines.push_back({.step = step,
                             .loss = number(line, "loss"),
                             .norm = number(line, "grad_norm"),
                             .rate = number(line, "lr"),
                             .tokens = number(line, "tokens"),
                             .seconds = number(line, "seconds")});
    if (const auto skipped = line.find("skipped"); skipped != line.end() && *skipped == true) {
      ++metrics.skipped;
    }
    if (const double loss = number(line, "val_loss"); std::isfinite(loss)) {
      metrics.validation.push_back({step, loss});
    }
  }
  return metrics;
}

ordered_json finite(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

double mean(std::span<const MetricsLine> lines, double MetricsLine::*member) {
  double sum = 0;
  for (const MetricsLine& line : lines) sum += line.*member;
  return sum / static_cast<double>(lines.size());
}

/// Every k-th entry, and the last: no more than `kMostPoints`.
ordered_json thinned(const ordered_json& entries) {
  const std::size_t each = entries.size() / kMostPoints + 1;
  ordered_json kept = ordered_json::array();
  for (std::size_t i = (entries.size() + each - 1) % each; i < entries.size(); i += each) {
    kept.push_back(entries[i]);
  }
  return kept;
}

ordered_json history_of(const Metrics& metrics) {
  const std::size_t each = metrics.lines.size() / kMostPoints + 1;
  ordered_json history{{"steps_a_point", each},
                       {"step", ordered_json::array()},
                       {"loss", ordered_json::array()},
                       {"grad_norm", ordered_json::array()},
                       {"lr", ordered_json::array()},
                       {"tokens_per_second", ordered_json::array()},
                       {"validation", thinned(metrics.validation)}};
  for (std::size_t first = 0; first < metrics.lines.size(); first += each) {
    const std::span part =
        std::span(metrics.lines).subspan(first, std::min(each, metrics.lines.size() - first));
    history["step"].push_back(part.back().step);
    history["loss"].push_back(finite(mean(part, &MetricsLine::loss)));
    history["grad_norm"].push_back(finite(mean(part, &MetricsLine::norm)));
    history["lr"].push_back(finite(mean(part, &MetricsLine::rate)));
    history["tokens_per_second"].push_back(
        finite(mean(part, &MetricsLine::tokens) / mean(part, &MetricsLine::seconds)));
  }
  return history;
}

double median_seconds(std::vector<MetricsLine> lines) {
  if (lines.empty()) return 0;
  const auto middle = lines.begin() + static_cast<std::ptrdiff_t>(lines.size() / 2);
  std::ranges::nth_element(lines, middle, {}, &MetricsLine::seconds);
  return middle->seconds;
}

ordered_json summary_of(const fs::path& path, const engine::RunDirectory& run,
                        const Metrics& metrics) {
  const engine::RunConfig config = run.read_config();
  ordered_json summary{{"directory", path.string()},
                       {"id", to_text(config.id)},
                       {"family", model::name_of(config.model.family)},
                       {"layers", config.model.layers},
                       {"steps", metrics.lines.size()},
                       {"skipped", metrics.skipped},
                       {"step_seconds", median_seconds(metrics.lines)}};
  if (!metrics.lines.empty()) {
    summary["first_step"] = metrics.lines.front().step;
    summary["last_step"] = metrics.lines.back().step;
    summary["first_loss"] = finite(metrics.lines.front().loss);
    summary["last_loss"] = finite(metrics.lines.back().loss);
  }
  return summary;
}

/// Rows of the kinds of ops by what was predicted and measured of them, the longest first.
std::string kind_rows(const ordered_json& planned, const ordered_json& measured) {
  struct Row {
    std::string name;
    double predicted = 0, measured = 0;
  };
  std::vector<Row> rows;
  for (const auto& [name, use] : measured.items()) {
    const auto found = planned.find(name);
    rows.push_back({name, found == planned.end() ? 0 : (*found)["seconds"].get<double>(),
                    use["seconds"].get<double>()});
  }
  std::ranges::sort(rows, std::ranges::greater{}, &Row::measured);
  std::string text =
      fmt::format("ops        {:<34} {:>11} {:>11}\n", "seconds a step", "predicted", "measured");
  for (const Row& row : rows) {
    text += fmt::format("           {:<34} {:>11.4f} {:>11.4f}\n", row.name, row.predicted,
                        row.measured);
  }
  return text;
}

bool has_number(const ordered_json& document, const char* key) {
  return document.is_object() && document.contains(key) && document[key].is_number();
}

bool is_picture(const ordered_json& picture) {
  const bool is_whole = has_number(picture, "step_seconds") && picture.contains("kinds") &&
                        picture["kinds"].is_object();
  return is_whole && std::ranges::all_of(picture["kinds"], [](const ordered_json& kind) {
           return has_number(kind, "seconds");
         });
}

/// Reads what `keep_plan` has written.
ordered_json kept_plan(const fs::path& path) {
  ordered_json kept =
      parse_ordered_json(read_text_file(path, kLongestPlan), {.origin = path.native()});
  const std::string remedy = "remove it, or start the run once more";
  check(has_number(kept, "format"), ErrorCode::corrupt_data,
        fmt::format("{} is no plan of a run: {}", path.string(), remedy));
  check(kept["format"] == kFormat, ErrorCode::not_supported,
        fmt::format("{} is of another version of this program, which reads format {}: {}",
                    path.string(), kFormat, remedy));
  check(kept.contains("plan") && kept["plan"].is_object() && kept.contains("picture") &&
            is_picture(kept["picture"]),
        ErrorCode::corrupt_data,
        fmt::format("{} lacks parts of a plan: {}", path.string(), remedy));
  return kept;
}

std::string loss_text(const ordered_json& loss) {
  return loss.is_number() ? fmt::format("{:.4f}", loss.get<double>()) : "not finite";
}

}  // namespace

void keep_plan(const fs::path& run, const engine::TrainPlan& plan, const engine::Note& note) {
  try {
    const ordered_json document{{"format", kFormat},
                                {"plan", to_json({.plan = plan.plan, .shares = plan.shares})},
                                {"picture", step_picture(plan.plan, plan.step)}};
    write_file_atomically(engine::RunDirectory(run).plan(),
                          document.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  } catch (const std::exception& error) {
    note(fmt::format("the plan is not kept: {}", error.what()));
  }
}

ordered_json run_report(const fs::path& path) {
  const engine::RunDirectory run(path);
  check(run.exists(), ErrorCode::invalid_argument,
        fmt::format("{} has no run: give the directory that `spillway train --run` was given",
                    path.string()));
  const Metrics metrics = metrics_of(run.metrics());
  ordered_json report{{"run", summary_of(path, run, metrics)},
                      {"plan", nullptr},
                      {"picture", nullptr},
                      {"measured", nullptr},
                      {"history", history_of(metrics)}};
  if (is_there(run.plan())) {
    ordered_json kept = kept_plan(run.plan());
    report["plan"] = std::move(kept["plan"]);
    report["picture"] = std::move(kept["picture"]);
  }
  if (is_there(run.trace())) report["measured"] = measured_step(run.trace());
  return report;
}

std::string run_report_title(const fs::path& run) {
  return fmt::format("{}: what was planned and measured", run.string());
}

std::string run_report_text(const ordered_json& report) {
  const ordered_json& run = report["run"];
  std::string text =
      fmt::format("run        {}, {} of {} layers\n", run["directory"].get<std::string>(),
                  run["family"].get<std::string>(), run["layers"].get<unsigned>());
  if (!run.contains("last_step")) return text + "steps      none yet\n";
  text += fmt::format("steps      {} to {}, {} skipped\n", run["first_step"].get<std::uint64_t>(),
                      run["last_step"].get<std::uint64_t>(), run["skipped"].get<std::uint64_t>());
  text += fmt::format("loss       {} at first, {} at last\n", loss_text(run["first_loss"]),
                      loss_text(run["last_loss"]));
  if (const ordered_json& losses = report["history"]["validation"]; !losses.empty()) {
    text += fmt::format("validation {:.4f} after step {}\n", losses.back()[1].get<double>(),
                        losses.back()[0].get<std::uint64_t>());
  }
  const double seconds = run["step_seconds"];
  text += fmt::format("step time  measured {:.4f} s (median)", seconds);
  if (!report["picture"].is_null()) {
    const double predicted = report["picture"]["step_seconds"];
    text +=
        fmt::format(", predicted {:.4f} s ({:+.1f} %)", predicted, 100 * (seconds / predicted - 1));
  }
  text += '\n';
  if (!report["measured"].is_null()) {
    text +=
        kind_rows(report["picture"].is_null() ? ordered_json::object() : report["picture"]["kinds"],
                  report["measured"]["kinds"]);
  }
  return text;
}

}  // namespace spillway::cli
