#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/engine/run/contents.hpp"
#include "runtime/engine/run/reader.hpp"
#include "runtime/engine/run/tokenizer.hpp"
#include "runtime/model/hf/checkpoint.hpp"
#include "runtime/model/hf/tokenizer_files.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"

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
void on_signal(int signal) {
  caught = signal;
  std::signal(signal, SIG_DFL);
}

struct Interrupted {};

/// What replaces a run or a directory above one would destroy it.
void check_target(const ExportFlags& flags) {
  const auto run = engine::run_in(flags.out);
  check(!run.has_value(), ErrorCode::invalid_argument,
        fmt::format("{} holds the run {}; export into a directory of its own", flags.out.string(),
                    run ? run->string() : ""));
}

nlohmann::ordered_json write(const ExportFlags& flags, bool json) {
  const engine::RunReader reader(flags.run);
  const DType dtype =
      flags.dtype.empty() ? reader.config().options.compute : parse_dtype(flags.dtype);
  model::CheckpointWriter writer(
      flags.out, reader.config().model, reader.layout(),
      {.dtype = dtype,
       .max_shard = parse_bytes(flags.max_shard),
       .if_exists = flags.force ? model::IfExists::replace : model::IfExists::refuse});
  std::vector<float> masters;
  const auto& blocks = reader.layout().blocks;
  // A tile of the run at a time: no model is too large for the memory that is left.
  const std::uint64_t tile = reader.config().options.tile_parameters;
  for (std::uint32_t block = 0; block < blocks.size(); ++block) {
    const std::uint64_t count = blocks[block].parameters.value();
    for (std::uint64_t first = 0; first < count; first += tile) {
      if (caught != 0) throw Interrupted();
      masters.resize(std::min(tile, count - first));
      reader.read(BlockIndex{block}, ElementCount{first}, masters);
      writer.append(BlockIndex{block}, std::as_bytes(std::span(masters)), DType::fp32);
    }
  }
  const std::filesystem::path tokenizer = engine::tokenizer_directory(flags.run);
  for (const std::string& name : model::tokenizer_files(tokenizer)) {
    writer.add_file(name, model::read_tokenizer_file(tokenizer / name));
  }
  writer.finish();
  if (!json) {
    answer("{}: step {} of {}, {} parameters in {}\n", flags.out.string(), reader.state().step,
           flags.run.string(), reader.layout().parameters().value(), name_of(dtype));
  }
  return {{"out", flags.out.string()},
          {"step", reader.state().step},
          {"parameters", reader.layout().parameters().value()},
          {"dtype", name_of(dtype)}};
}

nlohmann::ordered_json run(const ExportFlags& flags, bool json) {
  check_target(flags);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, on_signal);
  try {
    return engine::retry_overtaken([&] { return write(flags, json); });
  } catch (const Interrupted&) {
    // What was written is gone with its writer; now the signal does what it would have done.
    std::raise(caught);
    throw;
  }
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
