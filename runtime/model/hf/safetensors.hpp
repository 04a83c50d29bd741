// The safetensors file format: a JSON header that says where each tensor lies, then their bytes.
//
// Threads: reading is const and positioned, any number at once; a writer belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "runtime/base/units.hpp"

namespace spillway::model {

namespace detail {
class ReadableFile;
class WritableFile;
}  // namespace detail

/// Describes one tensor of a file as its header declares it.
struct StoredTensor {
  std::string type;                  ///< the format's name: "F32", "BF16", "I64", ...
  std::vector<std::uint64_t> shape;  ///< row-major; empty for a scalar
  FileOffset offset;                 ///< in the file
  Bytes size;

  [[nodiscard]] ElementCount count() const;
  /// Returns nothing for types that hold no weights here (integers, 8-bit floats, F64).
  [[nodiscard]] std::optional<DType> dtype() const;
};

struct SafetensorsHeader {
  std::map<std::string, StoredTensor, std::less<>> tensors;
  std::map<std::string, std::string> metadata;
};

/// The most bytes that a header may have, as in the reference implementation.
inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

/// Returns the header's length from the first 8 bytes of a file of `file_size` bytes. Throws
/// `Error{corrupt_data}` naming `origin` if they cannot begin such a file.
[[nodiscard]] Bytes safetensors_header_size(std::span<const std::byte> first_bytes, Bytes file_size,
                                            std::string_view origin);
/// Reads the header text of a file with `data_size` bytes behind it. Throws `Error{corrupt_data}`
/// unless every tensor's type, shape and place agree and the tensors cover the data without holes,
/// overlaps or a rest.
[[nodiscard]] SafetensorsHeader parse_safetensors_header(std::string_view header, Bytes data_size,
                                                         std::string_view origin);

/// A file whose header has been read and checked.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();

  [[nodiscard]] const SafetensorsHeader& header() const { return header_; }
  [[nodiscard]] const std::string& path() const;
  /// Reads elements [first, first + target.size()) of a tensor of this file, widened to fp32.
  /// Throws `Error{not_supported}` unless the tensor has a `dtype()`.
  void read(const StoredTensor& tensor, ElementCount first, std::span<float> target) const;

 private:
  std::unique_ptr<const detail::ReadableFile> file_;
  SafetensorsHeader header_;
};

/// Describes a tensor about to be written.
struct TensorToStore {
  std::string name;
  std::vector<std::uint64_t> shape;
};

/// Writes one file of tensors of one dtype, streamed in the order given.
class SafetensorsWriter {
 public:
  /// Creates `path` and writes the header. Throws `Error{io_error}` if the file exists.
  SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorToStore> tensors,
                    DType dtype);
  ~SafetensorsWriter();

  /// Takes the next elements of the concatenated tensors, in the file's dtype.
  void append(std::span<const std::byte> elements);
  /// Makes the file durable. Throws `Error{internal}` if elements are missing or in excess.
  void finish();

 private:
  std::unique_ptr<detail::WritableFile> file_;
  std::string path_;
  Bytes expected_;
};

}  // namespace spillway::model
