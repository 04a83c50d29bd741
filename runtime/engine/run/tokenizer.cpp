#include "runtime/engine/run/tokenizer.hpp"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/data/tokenizer.hpp"
#include "runtime/engine/run/directory.hpp"
#include "runtime/model/hf/tokenizer_files.hpp"
#include "runtime/model/hf/tokenizer_fingerprint.hpp"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;

bool is_built_in(const std::string& tokenizer) {
  return tokenizer == data::kBytesTokenizer || tokenizer == data::kCharsTokenizer;
}

/// In what the tokenizer that made the data differs from `wanted`; empty if it is not known to. It
/// is what meta.json recorded, else what lies where it says.
std::string_view difference(const data::Meta& meta, const model::TokenizerFingerprint& wanted) {
  if (is_built_in(*meta.tokenizer)) return "another one";
  auto tokens = meta.tokenizer_crc32;
  auto rules = meta.tokenizer_rules_crc32;
  if (!tokens && !rules) {
    if (const auto found = model::tokenizer_fingerprint(*meta.tokenizer)) {
      tokens = found->tokens;
      rules = found->rules;
    }
  }
  if (tokens && *tokens != wanted.tokens) return "another one, with other tokens or merges";
  if (rules && *rules != wanted.rules) {
    return "another one, which has these tokens but normalizes or splits text in another way";
  }
  return {};
}

}  // namespace

fs::path tokenizer_directory(const fs::path& model) {
  return RunDirectory(model).exists() ? model / "tokenizer" : model;
}

void check_tokenizer(const fs::path& data, const fs::path& model) {
  const data::Meta meta = data::load_meta(data / "meta.json");
  if (!meta.tokenizer) return;
  const fs::path directory = tokenizer_directory(model);
  const auto wanted = model::tokenizer_fingerprint(directory);
  if (!wanted) return;
  const std::string_view other = difference(meta, *wanted);
  check(other.empty(), ErrorCode::invalid_argument,
        fmt::format("the tokens in {} were made with the tokenizer {}, and {} has {}; make them "
                    "with tools/python/spillway_tokenize.py {} TEXT... --out DIR",
                    data.string(), *meta.tokenizer, model.string(), other, directory.string()));
}

void keep_tokenizer(const TokenizerToKeep& keep) {
  const fs::path target = keep.run / "tokenizer";
  std::error_code failed;
  if (keep.old == OldTokenizer::goes) fs::remove_all(target, failed);
  if (failed) throw_errno(failed.value(), fmt::format("remove {}", target.string()));
  if (keep.from) model::copy_tokenizer_files(tokenizer_directory(*keep.from), target);
  const data::Meta meta = data::load_meta(keep.data / "meta.json");
  if (!meta.tokenizer || is_built_in(*meta.tokenizer)) return;
  const fs::path source = *meta.tokenizer;
  model::copy_tokenizer_files(source.extension() == ".json" ? source.parent_path() : source,
                              target);
}

}  // namespace spillway::engine
