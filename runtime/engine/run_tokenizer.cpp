#include "runtime/engine/run_tokenizer.hpp"

#include <fmt/format.h>

#include <string>

#include "runtime/base/error.hpp"
#include "runtime/data/tokenizer.hpp"
#include "runtime/engine/run_directory.hpp"
#include "runtime/model/tokenizer_files.hpp"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;

bool is_built_in(const std::string& tokenizer) {
  return tokenizer == data::kBytesTokenizer || tokenizer == data::kCharsTokenizer;
}

/// Of the tokenizer that made the data: what meta.json recorded, else what lies where it says.
std::optional<std::string> fingerprint_of(const data::Meta& meta) {
  if (meta.tokenizer_crc32) return meta.tokenizer_crc32;
  if (!meta.tokenizer || is_built_in(*meta.tokenizer)) return std::nullopt;
  return model::tokenizer_fingerprint(*meta.tokenizer);
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
  const auto used = fingerprint_of(meta);
  const bool differs = used ? *used != *wanted : is_built_in(*meta.tokenizer);
  check(
      !differs, ErrorCode::invalid_argument,
      fmt::format("the tokens in {} were made with the tokenizer {}, and {} has another one; make "
                  "them with tools/python/spillway_tokenize.py {} TEXT... --out DIR",
                  data.string(), *meta.tokenizer, model.string(), directory.string()));
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
