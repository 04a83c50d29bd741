#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iostream>
#include <iterator>
#include <memory>

#include "runtime/base/error.hpp"
#include "runtime/base/random.hpp"
#include "runtime/data/tokenizer.hpp"
#include "runtime/engine/inference.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/inference_flags.hpp"

namespace spillway::cli {
namespace {

struct GenerateFlags : InferenceFlags {
  std::filesystem::path data;  ///< whose meta.json names the tokenizer
  std::string prompt = "\n";
  std::string prompt_tokens;
  std::uint32_t tokens = 200;
  double temperature = 0.8;
  std::uint64_t seed = 1234;
};

/// Draws from softmax(logits / temperature); temperature 0 takes the most likely token.
std::int32_t sample(std::span<const float> logits, double temperature, double uniform) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return static_cast<std::int32_t>(best - logits.begin());
  double sum = 0;
  for (const float logit : logits) sum += std::exp((logit - *best) / temperature);
  double left = uniform * sum;
  auto token = logits.begin();
  for (const auto last = logits.end() - 1; token != last; ++token) {
    left -= std::exp((*token - *best) / temperature);
    if (left < 0) break;
  }
  return static_cast<std::int32_t>(token - logits.begin());
}

/// The ids of a list with commas or spaces between them; "-": of stdin.
std::vector<std::int32_t> parse_ids(std::string text) {
  if (text == "-") text.assign(std::istreambuf_iterator<char>(std::cin), {});
  std::vector<std::int32_t> ids;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (true) {
    while (at != end && (*at == ',' || std::isspace(static_cast<unsigned char>(*at)) != 0)) ++at;
    if (at == end) return ids;
    std::int32_t id = 0;
    const auto [next, status] = std::from_chars(at, end, id);
    check(status == std::errc{} && id >= 0, ErrorCode::invalid_argument,
          fmt::format("--prompt-tokens: \"{}\" is no token id; give whole numbers with commas or "
                      "spaces between them",
                      std::string_view(at, std::find(at, end, ' '))));
    ids.push_back(id);
    at = next;
  }
}

/// The tokenizer of the text, or none: then what is known of it, and how text is had all the same.
struct TextTokenizer {
  std::optional<data::Tokenizer> own;
  std::string why_not;
};

TextTokenizer tokenizer_of(const GenerateFlags& flags, ModelSource& source) {
  std::filesystem::path directory = flags.data;
  if (directory.empty() && source.run() != nullptr) directory = source.run()->config().data;
  std::optional<data::Meta> meta;
  // A run outlives its data: then its tokens are numbers only.
  const bool known = !directory.empty() &&
                     (!flags.data.empty() || std::filesystem::exists(directory / "meta.json"));
  if (known) meta = data::load_meta(directory / "meta.json");
  const bool built_in =
      meta && meta->tokenizer &&
      (*meta->tokenizer == data::kBytesTokenizer || *meta->tokenizer == data::kCharsTokenizer);
  if (built_in) return {data::Tokenizer(*meta), ""};
  const std::filesystem::path& where =
      flags.source.run.empty() ? flags.source.model : flags.source.run;
  const std::string helper =
      fmt::format("tools/python/spillway_tokenize.py {} --encode", where.string());
  return {std::nullopt,
          fmt::format("the text of {} is not this program's: give token ids by --prompt-tokens, "
                      "which {} makes of text ({} --decode is the way back), or --data DIR whose "
                      "meta.json names bytes or chars",
                      where.string(), helper, helper.substr(0, helper.find(" --encode")))};
}

nlohmann::ordered_json generate(const GenerateFlags& flags, bool json) {
  check(flags.temperature >= 0, ErrorCode::invalid_argument,
        fmt::format("--temperature {} is negative", flags.temperature));
  ModelSource source(flags.source);
  const TextTokenizer text = tokenizer_of(flags, source);
  const std::optional<data::Tokenizer>& tokenizer = text.own;
  check(tokenizer.has_value() || !flags.prompt_tokens.empty(), ErrorCode::invalid_argument,
        text.why_not);
  std::vector<std::int32_t> tokens = flags.prompt_tokens.empty() ? tokenizer->encode(flags.prompt)
                                                                 : parse_ids(flags.prompt_tokens);
  check(!tokens.empty(), ErrorCode::invalid_argument, "the prompt is empty");
  const auto largest = std::ranges::max_element(tokens);
  check(static_cast<std::uint32_t>(*largest) < source.config().vocab_size,
        ErrorCode::invalid_argument,
        fmt::format("--prompt-tokens: {} is not below the model's vocabulary of {}", *largest,
                    source.config().vocab_size));
  const std::uint32_t longest = model::longest_context(source.config());
  const auto wanted =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(longest, tokens.size() + flags.tokens));
  engine::Inference inference(source.config(),
                              flags.options(source, engine::InferenceUse::generation, 1, wanted),
                              source.parameters());
  const std::size_t prompt_length = tokens.size();
  if (!json && tokenizer) answer("{}", tokenizer->decode(tokens));
  for (std::uint32_t i = 0; i < flags.tokens; ++i) {
    const double uniform =
        uniform_from(as_u64(random_block(flags.seed, {.stream = 0, .index = i}))[0]);
    tokens.push_back(sample(inference.next_logits(tokens), flags.temperature, uniform));
    if (json || !tokenizer) continue;
    answer("{}", tokenizer->decode(std::span(tokens).last(1)));
    if (!flush_answers()) finish_answers();
  }
  if (!json && !tokenizer) answer("{}", fmt::join(tokens, " "));
  if (!json) answer("\n");
  nlohmann::ordered_json document{
      {"prompt_tokens", prompt_length}, {"tokens", tokens}, {"seed", flags.seed}};
  if (tokenizer) {
    // Byte tokens need not form UTF-8; JSON text must.
    document["text"] = nlohmann::ordered_json::parse(
        nlohmann::ordered_json(tokenizer->decode(tokens))
            .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
  return document;
}

nlohmann::ordered_json run(const GenerateFlags& flags, bool json) {
  return engine::retry_overtaken([&] { return generate(flags, json); });
}

}  // namespace

void add_generate(Command app, Session& session) {
  auto flags = std::make_shared<GenerateFlags>();
  Command command = add_command(app, session, "generate", "Continues a prompt",
                                [flags, &session] { return run(*flags, session.json); });
  flags->source.add_to(command);
  command.add_option("--data", flags->data, "meta.json of this data directory names the tokenizer");
  command.add_option("--prompt", flags->prompt, "The model continues this text");
  command.add_option(
      "--prompt-tokens,--prompt-ids", flags->prompt_tokens,
      "The model continues these token ids, which have commas or spaces between them; with "
      "- they come from stdin");
  command.add_option("--tokens", flags->tokens, "The model adds this many tokens")
      .capture_default();
  command
      .add_option("--temperature", flags->temperature,
                  "Tokens are drawn at this temperature; with 0 the most likely one is taken")
      .capture_default();
  command.add_option("--seed", flags->seed, "The drawing of tokens starts from this seed")
      .capture_default();
  flags->machine.add_compute(command);
}

}  // namespace spillway::cli
