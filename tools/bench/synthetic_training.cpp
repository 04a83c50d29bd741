#include "tools/bench/synthetic_training.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/random.hpp"
#include "runtime/data/meta.hpp"

namespace spillway::bench {
namespace {

constexpr std::uint64_t kTokenStream = 0x746f6b656e;
constexpr std::uint64_t kNoiseStream = 0x6e6f697365;
/// A prime, so that equal places of matrices with round sizes get different numbers.
constexpr std::size_t kNoise = 1'048'573;
constexpr std::size_t kTokensAtOnce = 1 << 16;

class TokenStream {
 public:
  TokenStream(std::uint32_t vocabulary, std::uint64_t seed)
      : vocabulary_(vocabulary), seed_(seed) {}

  std::uint32_t next() {
    if (index_ % 2 == 0) {
      bits_ = as_u64(random_block(seed_, {.stream = kTokenStream, .index = index_ / 2}));
    }
    return static_cast<std::uint32_t>(uniform_below(bits_[index_++ % 2], vocabulary_));
  }

 private:
  std::uint32_t vocabulary_;
  std::uint64_t seed_;
  std::uint64_t index_ = 0;
  std::array<std::uint64_t, 2> bits_{};
};

template <class Token>
void write_tokens(std::ofstream& file, TokenStream& stream, std::uint64_t count) {
  std::vector<Token> tokens;
  for (std::uint64_t written = 0; written < count; written += tokens.size()) {
    tokens.resize(std::min<std::uint64_t>(kTokensAtOnce, count - written));
    for (Token& token : tokens) token = static_cast<Token>(stream.next());
    file.write(reinterpret_cast<const char*>(tokens.data()),
               static_cast<std::streamsize>(tokens.size() * sizeof(Token)));
  }
}

}  // namespace

ScratchDirectory::ScratchDirectory(const std::filesystem::path& parent) {
  std::string name = (parent / "spillway-bench.XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw_errno(errno, "make a directory like " + name);
  path_ = name;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code failed;
  std::filesystem::remove_all(path_, failed);
  if (failed) log_warning("{} is left behind: {}", path_.string(), failed.message());
}

void fill_random_tokens(std::span<std::int32_t> tokens, std::uint32_t vocabulary,
                        std::uint64_t seed) {
  TokenStream stream(vocabulary, seed);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(stream.next());
}

void write_random_tokens(const std::filesystem::path& directory, std::uint32_t vocabulary,
                         std::uint64_t count, std::uint64_t seed) {
  std::filesystem::create_directories(directory);
  const data::Meta meta{.dtype = data::token_type_for(vocabulary),
                        .vocab_size = vocabulary,
                        .tokenizer = std::nullopt,
                        .characters = {}};
  const std::filesystem::path path = directory / "train.bin";
  std::ofstream file(path, std::ios::binary);
  TokenStream stream(vocabulary, seed);
  if (meta.dtype == data::TokenType::uint16) {
    write_tokens<std::uint16_t>(file, stream, count);
  } else {
    write_tokens<std::uint32_t>(file, stream, count);
  }
  file.close();
  check(file.good(), ErrorCode::io_error, fmt::format("cannot write {}", path.string()));
  data::save_meta(meta, directory / "meta.json");
}

NoiseParameters::NoiseParameters(const model::ModelConfig& config)
    : layout_(model::make_layout(config)), noise_(kNoise) {
  for (std::size_t i = 0; i < noise_.size(); ++i) {
    const auto pair = normal_pair(random_block(0, {.stream = kNoiseStream, .index = i / 2}));
    noise_[i] = static_cast<float>(config.init_std * pair[i % 2]);
  }
}

void NoiseParameters::read(BlockIndex block, ElementCount first, std::span<float> target) const {
  const model::BlockLayout& layout = layout_.blocks.at(block.value());
  std::ranges::fill(target, 0.0F);
  const std::uint64_t begin = first.value();
  const std::uint64_t end = begin + target.size();
  for (const model::ParameterTensor& tensor : layout.tensors) {
    const std::uint64_t from = std::max(begin, tensor.first.value());
    const std::uint64_t to = std::min(end, (tensor.first + tensor.count).value());
    if (from >= to || tensor.initial == model::Initial::zeros) continue;
    const auto part = target.subspan(from - begin, to - from);
    if (tensor.initial == model::Initial::ones) {
      std::ranges::fill(part, 1.0F);
      continue;
    }
    // Where a parameter takes its number from depends on its place alone, however reads are cut.
    std::size_t place = (from + block.value() * std::uint64_t{7919}) % kNoise;
    for (std::size_t done = 0; done < part.size();) {
      const std::size_t run = std::min(part.size() - done, kNoise - place);
      std::copy_n(noise_.begin() + static_cast<std::ptrdiff_t>(place), run,
                  part.begin() + static_cast<std::ptrdiff_t>(done));
      done += run;
      place = 0;
    }
  }
}

}  // namespace spillway::bench
