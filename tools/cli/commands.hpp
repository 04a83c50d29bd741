// The commands of `spillway`. Each file registers one subcommand; main.cpp runs the chosen one.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/cli/command_line.hpp"

namespace spillway::cli {

/// What a command needs to answer: human text, or one JSON document, on stdout.
struct Session {
  bool json = false;
  bool verbose = false;  ///< answers are long, and the log says what is chosen and why
  /// Runs the chosen command; its result document goes to stdout with --json.
  std::function<nlohmann::ordered_json()> run;
  /// Exit code of a command that answers, and whose answer is bad news.
  int exit_code = 0;
};

/// Adds a subcommand with --json and --verbose; its callback stores `work` in the session.
Command add_command(Command app, Session& session, const std::string& name,
                    const std::string& description, std::function<nlohmann::ordered_json()> work);

void add_data(Command app, Session& session);
void add_plan(Command app, Session& session);
void add_train(Command app, Session& session);
void add_report(Command app, Session& session);
void add_eval(Command app, Session& session);
void add_generate(Command app, Session& session);
void add_export(Command app, Session& session);
void add_info(Command app, Session& session);
void add_fsck(Command app, Session& session);
void add_profile(Command app, Session& session);
/// Add subcommands of `bench`.
void add_bench_comm(Command bench, Session& session);
void add_bench_gpu(Command bench, Session& session);
void add_bench_nvme(Command bench, Session& session);
void add_bench_pipeline(Command bench, Session& session);
void add_bench_swap(Command bench, Session& session);
void add_bench_step(Command bench, Session& session);

/// Adds `bench` and, in it, one subcommand for each thing measured.
void add_bench(Command app, Session& session);
void add_bench_adam(Command bench, Session& session);

}  // namespace spillway::cli
