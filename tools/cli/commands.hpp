// The commands of `spillway`. Each file registers one subcommand; main.cpp runs the chosen one.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace spillway::cli {

/// What a command needs to answer: human text, or one JSON document, on stdout.
struct Session {
  bool json = false;
  /// Runs the chosen command; its result document goes to stdout with --json.
  std::function<nlohmann::ordered_json()> run;
  /// Is that of a command that answers and has something bad to say.
  int exit_code = 0;
};

/// Adds a subcommand with --json; its callback stores `work` in the session.
CLI::App* add_command(CLI::App& app, Session& session, const std::string& name,
                      const std::string& description, std::function<nlohmann::ordered_json()> work);

void add_data(CLI::App& app, Session& session);
void add_plan(CLI::App& app, Session& session);
void add_train(CLI::App& app, Session& session);
void add_eval(CLI::App& app, Session& session);
void add_generate(CLI::App& app, Session& session);
void add_export(CLI::App& app, Session& session);
void add_info(CLI::App& app, Session& session);
void add_fsck(CLI::App& app, Session& session);
void add_profile(CLI::App& app, Session& session);
/// Subcommands of `bench`.
void add_bench_gpu(CLI::App& bench, Session& session);
void add_bench_nvme(CLI::App& bench, Session& session);
void add_bench_swap(CLI::App& bench, Session& session);
void add_bench_step(CLI::App& bench, Session& session);

/// Adds `bench` and, in it, one subcommand for each thing measured.
void add_bench(CLI::App& app, Session& session);
void add_bench_adam(CLI::App& bench, Session& session);

}  // namespace spillway::cli
