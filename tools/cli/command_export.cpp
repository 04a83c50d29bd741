#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>

#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/exporting.hpp"

namespace spillway::cli {
namespace {

struct ExportFlags {
  std::filesystem::path run;
  std::filesystem::path out;
  std::string dtype;
  std::string max_shard = "5GB";
  bool force = false;
};

// A signal handler can reach nothing else.
std::atomic<int> caught{0};

/// The next signal of that kind ends the process at once.
void catch_signal(int signal) {
  caught = signal;
  std::signal(signal, SIG_DFL);
}

nlohmann::ordered_json run(const ExportFlags& flags, bool json) {
  ExportRequest request{
      .run = flags.run, .out = flags.out, .max_shard = parse_bytes(flags.max_shard)};
  if (!flags.dtype.empty()) request.dtype = parse_dtype(flags.dtype);
  if (flags.force) request.if_exists = model::IfExists::replace;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, catch_signal);
  Exported exported;
  try {
    exported = export_run(request, [] { return caught != 0; });
  } catch (const ExportStopped&) {
    // Now the signal does what it would have done.
    std::raise(caught);
    throw;
  }
  if (!json) {
    answer("{}: step {} of {}, {} parameters in {}\n", flags.out.string(), exported.step,
           flags.run.string(), exported.parameters, name_of(exported.dtype));
  }
  return {{"out", flags.out.string()},
          {"step", exported.step},
          {"parameters", exported.parameters},
          {"dtype", name_of(exported.dtype)}};
}

}  // namespace

void add_export(Command app, Session& session) {
  auto flags = std::make_shared<ExportFlags>();
  Command command =
      add_command(app, session, "export", "Writes a run's last committed step as an HF checkpoint",
                  [flags, &session] { return run(*flags, session.json); });
  command.add_option("run", flags->run, "This run is exported").required();
  command
      .add_option("out", flags->out,
                  "The checkpoint is written to this directory, in the format of Hugging Face")
      .required();
  command.add_option(
      "--dtype", flags->dtype,
      "The weights have this type: fp32, bf16 or fp16; by default it is the run's compute type");
  command
      .add_option("--max-shard-size", flags->max_shard,
                  "No safetensors file is larger than this size")
      .capture_default();
  command.add_flag("--force", flags->force, "What is in the directory is replaced");
}

}  // namespace spillway::cli
