#include <fmt/format.h>

#include <memory>

#include "runtime/base/error.hpp"
#include "runtime/data/prepare.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"

namespace spillway::cli {
namespace {

struct DataFlags {
  std::vector<std::filesystem::path> texts;
  std::filesystem::path out;
  std::string tokenizer = "chars";
  double validation = 0.1;
  bool force = false;
};

nlohmann::ordered_json run(const DataFlags& flags, bool json) {
  check(flags.tokenizer == "bytes" || flags.tokenizer == "chars", ErrorCode::not_supported,
        fmt::format("--tokenizer {}: this program knows bytes and chars; for a Hugging Face "
                    "tokenizer run tools/python/spillway_tokenize.py",
                    flags.tokenizer));
  const data::PreparedData prepared = data::prepare_tokens(
      {.texts = flags.texts,
       .output = flags.out,
       .tokenizer =
           flags.tokenizer == "bytes" ? data::TextTokenizer::bytes : data::TextTokenizer::chars,
       .validation_fraction = flags.validation,
       .existing = flags.force ? data::ExistingOutput::replace : data::ExistingOutput::refuse});
  if (!json) {
    answer("{}: {} training and {} validation tokens, vocabulary {}\n", flags.out.string(),
           prepared.train_tokens, prepared.validation_tokens, prepared.meta.vocab_size);
  }
  return {{"out", flags.out.string()},
          {"train_tokens", prepared.train_tokens},
          {"val_tokens", prepared.validation_tokens},
          {"vocab_size", prepared.meta.vocab_size},
          {"tokenizer", flags.tokenizer}};
}

}  // namespace

void add_data(Command app, Session& session) {
  auto flags = std::make_shared<DataFlags>();
  Command command = add_command(app, session, "data", "Turns texts into token files",
                                [flags, &session] { return run(*flags, session.json); });
  command.add_option("texts", flags->texts, "These text files are tokenised in this order")
      .required();
  command
      .add_option("--out", flags->out,
                  "train.bin, val.bin and meta.json are written to this directory")
      .required();
  command
      .add_option("--tokenizer", flags->tokenizer,
                  "The tokens are the text's bytes or its characters (bytes or chars)")
      .capture_default();
  command
      .add_option("--val", flags->validation,
                  "This share of the text, its end, is held out for validation")
      .capture_default();
  command.add_flag("--force", flags->force, "What is in the directory is replaced");
}

}  // namespace spillway::cli
