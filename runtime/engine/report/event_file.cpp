#include "runtime/engine/report/event_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>

#include "runtime/base/error.hpp"

namespace spillway::engine::detail {
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78U : 0U);
    }
    table[byte] = value;
  }
  return table;
}

constexpr auto kCrcTable = make_crc_table();

/// TFRecord's way to keep a checksum of checksums from being trivial.
std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8U;
}

// The wire format of protocol buffers: a tag is the field's number times 8 plus its wire type.
constexpr char kVarint = 0;
constexpr char kFixed64 = 1;
constexpr char kLength = 2;
constexpr char kFixed32 = 5;

constexpr char tag(int field, char type) { return static_cast<char>(field * 8 + type); }

template <class Number>
std::string little_endian(Number number) {
  static_assert(std::endian::native == std::endian::little);
  const auto bytes = std::bit_cast<std::array<char, sizeof number>>(number);
  return {bytes.data(), bytes.size()};
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}

std::string nested(int field, std::string_view message) {
  return tag(field, kLength) + varint(message.size()) + std::string(message);
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Event: wall_time (1), step (2) and one of file_version (3), summary (5), session_log (7).
std::string event(std::uint64_t step, const std::string& what) {
  return tag(1, kFixed64) + little_endian(seconds_since_1970()) + tag(2, kVarint) + varint(step) +
         what;
}

/// Event files sort by the second at the front of their names; the process tells apart those of
/// one second.
std::filesystem::path name_of_file(std::uint64_t attempt) {
  return fmt::format("events.out.tfevents.{:010}.spillway.{}.{}",
                     static_cast<std::uint64_t>(seconds_since_1970()), ::getpid(), attempt);
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t value = ~0U;
  for (const char byte : bytes) {
    value = (value >> 8) ^ kCrcTable[(value ^ static_cast<unsigned char>(byte)) & 0xffU];
  }
  return ~value;
}

EventFile::EventFile(const std::filesystem::path& directory, std::uint64_t first_step) {
  std::filesystem::create_directories(directory);
  int descriptor = -1;
  for (std::uint64_t attempt = 0; descriptor < 0; ++attempt) {
    path_ = directory / name_of_file(attempt);
    descriptor = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (descriptor < 0 && errno != EEXIST) {
      throw_errno(errno, fmt::format("create {}", path_.string()));
    }
  }
  file_ = FileDescriptor(descriptor);
  write_record(event(0, nested(3, "brain.Event:2")));
  write_record(event(first_step, nested(7, tag(1, kVarint) + varint(1))));  // SessionLog START
}

void EventFile::append(std::string_view name, double value, std::uint64_t step) {
  const std::string scalar =
      nested(1, name) + tag(2, kFixed32) + little_endian(static_cast<float>(value));
  write_record(event(step, nested(5, nested(1, scalar))));
}

void EventFile::write_record(const std::string& event) {
  const std::string length = little_endian(std::uint64_t{event.size()});
  const std::string record =
      length + little_endian(masked_crc(length)) + event + little_endian(masked_crc(event));
  const ssize_t written = ::write(file_.get(), record.data(), record.size());
  if (written < 0) throw_errno(errno, fmt::format("write {}", path_.string()));
  check(static_cast<std::size_t>(written) == record.size(), ErrorCode::io_error,
        fmt::format("{}: only {} of {} bytes were written; the disk is full", path_.string(),
                    written, record.size()));
}

}  // namespace spillway::engine::detail
