#include "tools/cli/report_text.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tools/cli/plan_text.hpp"

namespace spillway::cli {

using nlohmann::ordered_json;

std::string to_text(const engine::TrainReport& report) {
  const char* const interrupted = report.interrupted ? " (interrupted, saved)" : "";
  if (report.steps == 0) {
    return fmt::format(
        "trained    no step: the run is at step {}{}\n", report.last_step,
        report.interrupted ? interrupted : ", its last; --steps N goes on to step N");
  }
  std::string text =
      fmt::format("trained    {} step(s) to step {}{}, loss {:.4f}{}\n", report.steps,
                  report.last_step, interrupted, report.last_loss.value_or(0),
                  report.val_loss ? fmt::format(", validation loss {:.4f}", *report.val_loss) : "");
  text += fmt::format("step time  predicted {:.4f} s, measured {:.4f} s ({:+.1f} %), {}\n",
                      report.predicted_step_seconds, report.measured_step_seconds,
                      100 * (report.measured_step_seconds / report.predicted_step_seconds - 1),
                      shown_rate(report.tokens_per_second));
  text += fmt::format("memory     device {} of {}, host {}; disk read {}, written {}\n",
                      format_bytes(report.device_high_water), format_bytes(report.device_capacity),
                      format_bytes(report.host_high_water), format_bytes(report.state_read),
                      format_bytes(report.state_written));
  if (report.skipped > 0) {
    text += fmt::format("skipped    {} step(s) with non-finite gradients\n", report.skipped);
  }
  return text;
}

ordered_json to_json(const engine::TrainReport& report) {
  ordered_json document{{"steps", report.steps},
                        {"last_step", report.last_step},
                        {"loss", report.last_loss ? ordered_json(*report.last_loss) : nullptr},
                        {"tokens_per_second", report.tokens_per_second},
                        {"predicted_step_seconds", report.predicted_step_seconds},
                        {"measured_step_seconds", report.measured_step_seconds},
                        {"skipped_steps", report.skipped},
                        {"interrupted", report.interrupted},
                        {"device_high_water", report.device_high_water.value()},
                        {"device_budget", report.device_capacity.value()},
                        {"host_high_water", report.host_high_water.value()},
                        {"state_bytes_read", report.state_read.value()},
                        {"state_bytes_written", report.state_written.value()}};
  if (report.val_loss) document["val_loss"] = *report.val_loss;
  return document;
}

}  // namespace spillway::cli
