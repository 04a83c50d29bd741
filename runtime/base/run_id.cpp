#include "runtime/base/run_id.hpp"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <charconv>
#include <cstddef>

#include "runtime/base/error.hpp"

namespace spillway {
namespace {

constexpr std::size_t kDigits = 16;  // of one word

}  // namespace

RunId random_run_id() {
  RunId id;
  // The kernel gives up to 256 bytes whole.
  const ssize_t got = ::getrandom(id.words.data(), sizeof id.words, 0);
  if (got != static_cast<ssize_t>(sizeof id.words)) throw_errno(got < 0 ? errno : EIO, "getrandom");
  return id;
}

std::string to_text(const RunId& id) {
  return fmt::format("{:016x}{:016x}", id.words[0], id.words[1]);
}

std::optional<RunId> parse_run_id(std::string_view text) {
  RunId id;
  if (text.size() != id.words.size() * kDigits) return std::nullopt;
  if (text.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  for (std::size_t i = 0; i < id.words.size(); ++i) {
    const char* const first = text.data() + i * kDigits;
    std::from_chars(first, first + kDigits, id.words[i], 16);
  }
  return id;
}

}  // namespace spillway
