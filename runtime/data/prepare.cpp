#include "runtime/data/prepare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cctype>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/data/detail/files.hpp"
#include "runtime/data/detail/utf8.hpp"
#include "runtime/data/tokenizer.hpp"

namespace spillway::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kChunkBytes = 1 << 20;
constexpr std::uint32_t kCodePoints = 0x110000;
constexpr std::array<std::string_view, 3> kOutputs{"meta.json", "train.bin", "val.bin"};

/// Calls `visit(code point, or byte)` for everything in the texts, in order.
template <class Visit>
void for_each_unit(const PrepareOptions& options, Visit&& visit) {
  std::vector<std::byte> chunk(kChunkBytes);
  for (const fs::path& path : options.texts) {
    const FileDescriptor file = open_regular_file(path);
    detail::Utf8Decoder decoder;
    std::uint64_t position = 0;
    const auto refuse = [&] {
      throw Error(ErrorCode::corrupt_data,
                  fmt::format("{} is not valid UTF-8 at byte {}; convert it, or use the bytes "
                              "tokenizer, which takes any file",
                              path.string(), position));
    };
    while (const std::size_t count = detail::read_some(file, chunk, path)) {
      for (const std::byte raw : std::span(chunk).first(count)) {
        const auto byte = std::to_integer<std::uint8_t>(raw);
        if (options.tokenizer == TextTokenizer::bytes) {
          visit(char32_t{byte});
        } else {
          const detail::Utf8Status status = decoder.feed(byte);
          if (status == detail::Utf8Status::invalid) refuse();
          if (status == detail::Utf8Status::complete) visit(decoder.character());
        }
        ++position;
      }
    }
    if (!decoder.at_boundary()) refuse();
  }
}

/// What the first pass over the texts finds.
struct Survey {
  std::uint64_t tokens = 0;
  Meta meta;
};

Survey survey(const PrepareOptions& options) {
  Survey result;
  if (options.tokenizer == TextTokenizer::bytes) {
    for (const fs::path& path : options.texts) {
      result.tokens += detail::size_of_file(open_regular_file(path), path);
    }
    result.meta.tokenizer = kBytesTokenizer;
    result.meta.vocab_size = 256;
  } else {
    const auto seen = std::make_unique<std::bitset<kCodePoints>>();
    for_each_unit(options, [&](char32_t character) {
      seen->set(character);
      ++result.tokens;
    });
    for (char32_t character = 0; character < kCodePoints; ++character) {
      if (seen->test(character)) result.meta.characters.push_back(character);
    }
    result.meta.tokenizer = kCharsTokenizer;
    result.meta.vocab_size = static_cast<std::uint32_t>(result.meta.characters.size());
  }
  result.meta.dtype = token_type_for(result.meta.vocab_size);
  return result;
}

/// One token file being written.
class TokenWriter {
 public:
  TokenWriter(const fs::path& path, TokenType type) : file_(path), token_bytes_(size_of(type)) {
    buffer_.reserve(kChunkBytes);
  }

  void put(std::uint32_t token) {
    for (std::size_t i = 0; i < token_bytes_; ++i) {
      buffer_.push_back(static_cast<std::byte>(token >> (8 * i)));
    }
    if (buffer_.size() + token_bytes_ > kChunkBytes) flush();
  }

  void finish() {
    flush();
    file_.finish();
  }
  void publish() { file_.publish(); }

 private:
  void flush() {
    file_.write(buffer_);
    buffer_.clear();
  }

  detail::PartialFile file_;
  std::size_t token_bytes_;
  std::vector<std::byte> buffer_;
};

/// Token id of every code point that `meta` knows.
std::vector<std::uint32_t> token_table(const Meta& meta) {
  constexpr std::uint32_t kAbsent = ~0U;
  std::vector<std::uint32_t> table(meta.characters.empty() ? 256 : kCodePoints, kAbsent);
  for (std::uint32_t id = 0; id < meta.vocab_size; ++id) {
    table[meta.characters.empty() ? id : meta.characters[id]] = id;
  }
  return table;
}

void refuse_change() {
  throw Error(ErrorCode::io_error,
              "a text changed while it was being read; nothing was written, run the command again");
}

/// Second pass: the first `report.train_tokens` tokens go to `train`, the others to `validation`.
void write_tokens(const PrepareOptions& options, const PreparedData& report, TokenWriter& train,
                  TokenWriter* validation) {
  const std::vector<std::uint32_t> table = token_table(report.meta);
  const std::uint64_t total = report.train_tokens + report.validation_tokens;
  std::uint64_t written = 0;
  for_each_unit(options, [&](char32_t unit) {
    const std::uint32_t token = table[unit];
    if (written == total || token >= report.meta.vocab_size) refuse_change();
    (written < report.train_tokens ? train : *validation).put(token);
    ++written;
  });
  if (written != total) refuse_change();
}

void check_options(const PrepareOptions& options) {
  check(!options.texts.empty(), ErrorCode::invalid_argument, "no text was given");
  const double fraction = options.validation_fraction;
  if (!(fraction >= 0 && fraction < 1)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("validation fraction {} is not in [0, 1)", fraction));
  }
}

/// Files whose bytes are not text that a model should learn, by the names that they go by.
void check_texts(const PrepareOptions& options) {
  constexpr std::array<std::string_view, 3> kRecords{".jsonl", ".ndjson", ".parquet"};
  constexpr std::array<std::string_view, 6> kPacked{".gz", ".zst", ".bz2", ".xz", ".zip", ".arrow"};
  for (const fs::path& path : options.texts) {
    std::string kind = path.extension().string();
    std::ranges::transform(kind, kind.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    check(
        std::ranges::find(kRecords, kind) == kRecords.end(), ErrorCode::invalid_argument,
        fmt::format("{} holds records and not text; tools/python/spillway_tokenize.py takes their "
                    "field `text`, or write it to a text file",
                    path.string()));
    check(std::ranges::find(kPacked, kind) == kPacked.end(), ErrorCode::invalid_argument,
          fmt::format("{} does not hold plain text; unpack or convert it", path.string()));
  }
}

void check_output(const PrepareOptions& options) {
  for (const std::string_view name : kOutputs) {
    const fs::path path = options.output / name;
    if (options.existing == ExistingOutput::refuse && fs::exists(fs::symlink_status(path))) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} exists; choose another output directory, or replace it with "
                              "--force",
                              path.string()));
    }
  }
}

void remove_if_there(const fs::path& path) {
  std::error_code code;
  fs::remove(path, code);
  if (code) throw_errno(code.value(), fmt::format("remove {}", path.string()));
}

/// meta.json goes first and comes last: it never describes token files that are not its own.
void publish(const PrepareOptions& options, const PreparedData& report, TokenWriter& train,
             TokenWriter* validation) {
  remove_if_there(options.output / "meta.json");
  train.publish();
  if (validation != nullptr) {
    validation->publish();
  } else {
    remove_if_there(options.output / "val.bin");
  }
  synchronize_directory(options.output);
  save_meta(report.meta, options.output / "meta.json");
}

}  // namespace

PreparedData prepare_tokens(const PrepareOptions& options) {
  check_options(options);
  check_texts(options);
  std::error_code code;
  fs::create_directories(options.output, code);
  if (code) throw_errno(code.value(), fmt::format("create {}", options.output.string()));
  const detail::DirectoryLock lock(options.output);
  check_output(options);

  const Survey found = survey(options);
  const auto total = static_cast<double>(found.tokens);
  PreparedData report;
  report.meta = found.meta;
  report.train_tokens =
      static_cast<std::uint64_t>(std::floor(total * (1 - options.validation_fraction)));
  report.validation_tokens = found.tokens - report.train_tokens;
  const bool held_out = options.validation_fraction > 0;
  if (report.train_tokens == 0 || (held_out && report.validation_tokens == 0)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} tokens cannot be split into training and validation at fraction "
                            "{}; give more text",
                            found.tokens, options.validation_fraction));
  }

  TokenWriter train(options.output / "train.bin", report.meta.dtype);
  std::optional<TokenWriter> validation;
  if (held_out) validation.emplace(options.output / "val.bin", report.meta.dtype);
  TokenWriter* const validation_writer = validation ? &*validation : nullptr;
  write_tokens(options, report, train, validation_writer);
  train.finish();
  if (validation) validation->finish();
  publish(options, report, train, validation_writer);
  return report;
}

}  // namespace spillway::data
