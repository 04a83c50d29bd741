// spillway: the command line. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 does
// not fit.
#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/wait_policy.hpp"

namespace spillway::cli {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitDoesNotFit = 3;

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::not_supported: return kExitUsage;
    case ErrorCode::does_not_fit: return kExitDoesNotFit;
    default: return kExitFailed;
  }
}

/// The failure as text on stderr and, with --json, as the document on stdout.
int report(const Session& session, int code, std::string_view kind, std::string_view message) {
  fmt::print(stderr, "spillway: {}\n", message);
  if (session.json) {
    const nlohmann::ordered_json document{
        {"error", {{"code", kind}, {"message", message}, {"exit", code}}}};
    fmt::print("{}\n", document.dump(2));
  }
  return code;
}

int run(Session& session) {
  try {
    const nlohmann::ordered_json document = session.run();
    if (session.json) fmt::print("{}\n", document.dump(2));
    return session.exit_code;
  } catch (const Error& error) {
    return report(session, exit_code(error.code()), name_of(error.code()), error.what());
  } catch (const std::exception& error) {
    return report(session, kExitFailed, "internal", error.what());
  }
}

}  // namespace

CLI::App* add_command(CLI::App& app, Session& session, const std::string& name,
                      const std::string& description,
                      std::function<nlohmann::ordered_json()> work) {
  CLI::App* command = app.add_subcommand(name, description);
  command->add_flag("--json", session.json,
                    "Print one JSON document on stdout, everything else on stderr");
  command->callback([&session, work = std::move(work)] { session.run = work; });
  return command;
}

namespace {

int run_program(int argc, char** argv) {
  Session session;
  CLI::App app{"Spillway: trains models too large for the GPU"};
  app.set_version_flag("--version", std::string("spillway ") + SPILLWAY_VERSION);
  app.require_subcommand(1);
  bool verbose = false;
  app.add_flag("-v,--verbose", verbose, "Log what is chosen and why");
  app.parse_complete_callback([&] {
    if (verbose) set_log_level(LogLevel::info);
  });
  add_data(app, session);
  add_plan(app, session);
  add_train(app, session);
  add_eval(app, session);
  add_generate(app, session);
  add_export(app, session);
  add_info(app, session);
  add_fsck(app, session);
  add_profile(app, session);
  add_bench(app, session);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  return run(session);
}

}  // namespace
}  // namespace spillway::cli

int main(int argc, char** argv) {
  spillway::cli::bound_waiting(argv);
  // `run` reports what commands throw; this is for what throws before and after them.
  try {
    return spillway::cli::run_program(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "spillway: %s\n", error.what());
  }
  return spillway::cli::kExitFailed;
}
