// spillway: the command line. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 does
// not fit.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/as_error.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"
#include "tools/bench/suggestion.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/printable.hpp"
#include "tools/cli/wait_policy.hpp"

namespace spillway::cli {
namespace {

constexpr const char* kVerbose = "Answers are long, and the log says what is chosen and why";
constexpr const char* kStart =
    "\nWhere to start:\n"
    "  spillway plan --machine rtx-4090 --model llama-3-8b   what a machine trains, and how fast\n"
    "  spillway plan --machines                              the same of many machines\n"
    "  spillway train --help                                 how to train\n";
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

/// Names from files need not be UTF-8; JSON must.
std::string text_of(const nlohmann::ordered_json& document) {
  return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// The document of a failure.
void answer_failure(int code, std::string_view kind, std::string_view message) {
  const nlohmann::ordered_json document{
      {"error", {{"code", kind}, {"message", message}, {"exit", code}}}};
  answer("{}\n", text_of(document));
}

/// The failure as text on stderr and, with --json, as the document on stdout.
int report(const Session& session, int code, std::string_view kind, std::string_view message) {
  tell_text(shown_on(STDERR_FILENO, fmt::format("spillway: {}\n", printable_message(message))));
  if (session.json) answer_failure(code, kind, message);
  return code;
}

int run(Session& session) {
  try {
    const nlohmann::ordered_json document = session.run();
    // One rank of several answers, the others give no document.
    if (session.json && !document.is_null()) answer("{}\n", text_of(document));
    return session.exit_code;
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    return report(session, exit_code(error.code()), name_of(error.code()), error.what());
  }
}

}  // namespace

Command add_command(Command app, Session& session, const std::string& name,
                    const std::string& description, std::function<nlohmann::ordered_json()> work) {
  CLI::App* command = app.app().add_subcommand(name, description);
  command->add_flag("--json", session.json,
                    "The answer is one JSON document on stdout; everything else goes to stderr");
  command->add_flag("-v,--verbose", session.verbose, kVerbose);
  command->callback([&session, work = std::move(work)] { session.run = work; });
  return Command(*command);
}

namespace {

/// The innermost command that the arguments chose, or the program itself.
const CLI::App& chosen(const CLI::App& app) {
  const auto commands = app.get_subcommands();
  return commands.empty() ? app : chosen(*commands.front());
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options([](const CLI::Option*) { return true; })) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// What to say of a word that nothing takes, with what it was probably meant to be; empty where
/// something else is wrong.
std::string explain_unknown_word(const CLI::App& app) {
  const CLI::App& command = chosen(app);
  const std::vector<std::string> words = command.remaining();
  if (words.empty()) return {};
  const bool flag = words.front().starts_with("--");
  const std::vector<std::string> known = flag ? flag_names(command) : command_names(command);
  if (known.empty()) return {};
  const std::string word = words.front().substr(0, words.front().find('='));
  const std::optional<std::string> meant = bench::nearest(word, known);
  if (flag && !meant) return {};
  return fmt::format("{} has no {} \"{}\"; {}\n", command.get_name(), flag ? "flag" : "command",
                     word,
                     meant ? fmt::format("did you mean \"{}\"?", *meant)
                           : fmt::format("its commands are {}", fmt::join(known, ", ")));
}

/// CLI11 reads "-1" as 2^64 - 1 and what is too large as the largest: both are refused here.
std::string check_whole_number(const std::string& text) {
  std::uint64_t number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, status] = std::from_chars(text.data(), last, number);
  if (status == std::errc{} && end == last) return {};
  return fmt::format("{} is not a whole number from 0 to 18446744073709551615", text);
}

void check_whole_numbers(CLI::App& app) {
  for (CLI::Option* const option : app.get_options()) {
    if (option->get_type_name() == "UINT") option->check(check_whole_number);
  }
  for (CLI::App* const command : app.get_subcommands({})) check_whole_numbers(*command);
}

/// Whether arguments that could not be parsed ask for JSON. What comes after "--" is no flag.
bool asks_for_json(int argc, char** argv) {
  const std::span arguments(argv, static_cast<std::size_t>(argc));
  const auto end = std::ranges::find(arguments, std::string_view("--"));
  return std::find(arguments.begin(), end, std::string_view("--json")) != end;
}

/// Help that was asked for, or what is wrong with the arguments.
int explain(const CLI::App& app, const CLI::ParseError& error, bool json) {
  std::ostringstream help;
  std::ostringstream complaint;
  const bool helped = app.exit(error, help, complaint) == 0;
  answer_text(shown_on(STDOUT_FILENO, help.str()));
  if (helped) return 0;
  std::string said = explain_unknown_word(app);
  if (said.empty()) said = complaint.str();
  tell_text(shown_on(STDERR_FILENO, printable_message(said)));
  said.erase(said.find_last_not_of('\n') + 1);
  if (json) answer_failure(kExitUsage, name_of(ErrorCode::invalid_argument), said);
  return kExitUsage;
}

int run_program(int argc, char** argv) {
  Session session;
  CLI::App app{"Spillway: trains models too large for the GPU", "spillway"};
  app.set_version_flag("--version", std::string("spillway ") + SPILLWAY_VERSION);
  app.require_subcommand(1);
  app.add_flag("-v,--verbose", session.verbose, kVerbose);
  app.parse_complete_callback([&] {
    if (session.verbose) set_log_level(LogLevel::info);
  });
  const Command program(app);
  add_data(program, session);
  add_plan(program, session);
  add_train(program, session);
  add_report(program, session);
  add_eval(program, session);
  add_generate(program, session);
  add_export(program, session);
  add_info(program, session);
  add_fsck(program, session);
  add_profile(program, session);
  add_bench(program, session);
  check_whole_numbers(app);
  if (argc == 1) {
    answer_text(shown_on(STDOUT_FILENO, app.help() + kStart));
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return explain(app, error, asks_for_json(argc, argv));
  }
  return run(session);
}

}  // namespace
}  // namespace spillway::cli

int main(int argc, char** argv) {
  using namespace spillway::cli;
  bound_waiting(argv);
  // `run` reports what commands throw; this is for what throws before and after them.
  try {
    open_standard_streams();
    const int code = run_program(argc, argv);
    if (code == 0) finish_answers();
    return code;
  } catch (const std::exception& error) {
    tell_text(std::string("spillway: ") + error.what() + "\n");
  }
  return kExitFailed;
}
