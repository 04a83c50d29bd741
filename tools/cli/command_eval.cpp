#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "runtime/base/error.hpp"
#include "runtime/engine/inference.hpp"
#include "runtime/engine/run/tokenizer.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/hub.hpp"
#include "tools/cli/inference_flags.hpp"

namespace spillway::cli {
namespace {

struct EvalFlags : InferenceFlags {
  std::filesystem::path data;
  std::uint32_t context = 0;
  std::uint32_t batch = 8;
};

/// A directory means its val.bin; a file needs a meta.json beside it.
data::TokenFile open_tokens(const std::filesystem::path& path) {
  const bool directory = std::filesystem::is_directory(path);
  const std::filesystem::path file = directory ? path / "val.bin" : path;
  const data::Meta meta = data::load_meta(file.parent_path() / "meta.json");
  return {file, meta.dtype};
}

nlohmann::ordered_json evaluate(const EvalFlags& flags, bool json) {
  ModelSource source(flags.source);
  const data::TokenFile tokens = open_tokens(flags.data);
  if (!flags.source.model.empty()) {
    const bool directory = std::filesystem::is_directory(flags.data);
    engine::check_tokenizer(directory ? flags.data : flags.data.parent_path(),
                            find_checkpoint(flags.source.model));
  }
  std::uint32_t context = flags.context;
  if (context == 0 && source.run() != nullptr) context = source.run()->config().options.context;
  engine::Inference inference(
      source.config(),
      flags.options(source, engine::InferenceUse::evaluation, flags.batch, context),
      source.parameters());
  const engine::Evaluation result = inference.evaluate(tokens);
  const double perplexity = std::exp(result.loss);
  if (!json) {
    answer("loss {:.6f}, perplexity {:.4f}, {} tokens\n", result.loss, perplexity, result.tokens);
  }
  return {{"loss", result.loss}, {"perplexity", perplexity}, {"tokens", result.tokens}};
}

nlohmann::ordered_json run(const EvalFlags& flags, bool json) {
  return engine::retry_overtaken([&] { return evaluate(flags, json); });
}

}  // namespace

void add_eval(Command app, Session& session) {
  auto flags = std::make_shared<EvalFlags>();
  Command command =
      add_command(app, session, "eval", "Computes loss and perplexity of a model on a token file",
                  [flags, &session] { return run(*flags, session.json); });
  flags->source.add_to(command);
  command
      .add_option("--data", flags->data,
                  "The model is evaluated on this token file, or on val.bin of this directory")
      .required();
  command.add_option(
      "--context", flags->context,
      "A window has this many tokens; by default as many as in the run or the model");
  command.add_option("--batch", flags->batch, "This many windows run through the model together")
      .capture_default();
  flags->machine.add_compute(command);
}

}  // namespace spillway::cli
