#include <memory>

#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/page_flag.hpp"
#include "tools/cli/picture/run_report.hpp"

namespace spillway::cli {
namespace {

struct ReportFlags {
  std::filesystem::path run;
  PageFlag page;
};

nlohmann::ordered_json run(const ReportFlags& flags, bool json) {
  nlohmann::ordered_json report = run_report(flags.run);
  if (!json) answer("{}", run_report_text(report));
  flags.page.write(run_report_title(flags.run), report);
  return report;
}

}  // namespace

void add_report(Command app, Session& session) {
  auto flags = std::make_shared<ReportFlags>();
  Command command = add_command(app, session, "report",
                                "Shows a run: its steps, planned and measured, and its loss",
                                [flags, &session] { return run(*flags, session.json); });
  command.add_option("run", flags->run, "This is the directory of the run").required();
  flags->page.add_to(command);
}

}  // namespace spillway::cli
