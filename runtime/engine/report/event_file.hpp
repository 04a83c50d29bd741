// A file of TensorBoard events: TFRecord frames of Event messages, encoded by hand, as the few
// fields that a scalar needs. Control thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/base/file.hpp"

namespace spillway::engine::detail {

/// Returns the CRC-32C (Castagnoli) of `bytes`.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);

class EventFile {
 public:
  /// Creates a new file in `directory`. Events that older files there have from `first_step` on are
  /// hidden by its first record, as those of a run that was interrupted and went on.
  EventFile(const std::filesystem::path& directory, std::uint64_t first_step);

  /// Writes one scalar, in one write: a kill leaves whole records.
  void append(std::string_view tag, double value, std::uint64_t step);

 private:
  void write_record(const std::string& event);

  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace spillway::engine::detail
