#include "runtime/model/hf/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "runtime/base/error.hpp"
#include "runtime/model/hf/posix_file.hpp"

namespace spillway::model {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr std::size_t kReadElements = 16384;

SafetensorsHeader read_header(const detail::ReadableFile& file) {
  std::array<std::byte, 8> first{};
  const std::size_t available = std::min<std::uint64_t>(first.size(), file.size().value());
  file.read_at(FileOffset{0}, std::span(first).first(available));
  const Bytes size =
      safetensors_header_size(std::span(first).first(available), file.size(), file.path());
  std::string header(size.value(), '\0');
  file.read_at(FileOffset{8}, std::as_writable_bytes(std::span(header)));
  return parse_safetensors_header(header, file.size() - Bytes{8} - size, file.path());
}

std::string_view stored_name(DType dtype) {
  switch (dtype) {
    case DType::fp32: return "F32";
    case DType::bf16: return "BF16";
    case DType::fp16: return "F16";
  }
  return "";
}

std::string make_header(std::span<const TensorToStore> tensors, DType dtype, Bytes& data_size) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::string text = header.dump();
  text.pop_back();
  std::uint64_t next = 0;
  for (const TensorToStore& tensor : tensors) {
    std::uint64_t size = size_of(dtype);
    for (const std::uint64_t extent : tensor.shape) size *= extent;
    const nlohmann::ordered_json entry = {{"dtype", stored_name(dtype)},
                                          {"shape", tensor.shape},
                                          {"data_offsets", {next, next + size}}};
    // Members are written one by one: an object of this library finds a key in linear time.
    text += fmt::format(",{}:{}", nlohmann::ordered_json(tensor.name).dump(), entry.dump());
    next += size;
  }
  text += '}';
  // The data then starts at a multiple of 8, as readers that map the file like it.
  text.resize(round_up(text.size(), 8), ' ');
  data_size = Bytes{next};
  return text;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(std::make_unique<detail::ReadableFile>(path)), header_(read_header(*file_)) {}

SafetensorsFile::~SafetensorsFile() = default;

const std::string& SafetensorsFile::path() const { return file_->path(); }

void SafetensorsFile::read(const StoredTensor& tensor, ElementCount first,
                           std::span<float> target) const {
  const std::optional<DType> dtype = tensor.dtype();
  if (!dtype) {
    throw Error(ErrorCode::not_supported,
                fmt::format("{}: a tensor of dtype {} cannot be read; save it as F32, BF16 or F16",
                            file_->path(), tensor.type));
  }
  SPILLWAY_ASSERT(first + ElementCount{target.size()} <= tensor.count());
  const std::size_t width = size_of(*dtype);
  FileOffset offset = tensor.offset + FileOffset{first.value() * width};
  if (*dtype == DType::fp32) {
    file_->read_at(offset, std::as_writable_bytes(target));
    return;
  }
  std::array<std::uint16_t, kReadElements> chunk;
  while (!target.empty()) {
    const auto stored = std::span(chunk).first(std::min(target.size(), chunk.size()));
    file_->read_at(offset, std::as_writable_bytes(stored));
    if (*dtype == DType::bf16) {
      std::ranges::transform(stored, target.begin(), from_bf16);
    } else {
      std::ranges::transform(stored, target.begin(), from_fp16);
    }
    offset += FileOffset{stored.size_bytes()};
    target = target.subspan(stored.size());
  }
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::span<const TensorToStore> tensors, DType dtype)
    : file_(std::make_unique<detail::WritableFile>(path)), path_(path.string()) {
  const std::string header = make_header(tensors, dtype, expected_);
  check(header.size() <= kMaxSafetensorsHeader, ErrorCode::invalid_argument,
        fmt::format("{}: a header of {} bytes is more than the format allows; use smaller shards",
                    path_, header.size()));
  std::array<std::byte, 8> size{};
  const std::uint64_t header_size = header.size();
  std::memcpy(size.data(), &header_size, size.size());
  file_->append(size);
  file_->append(std::as_bytes(std::span(header)));
  expected_ += file_->written();
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::append(std::span<const std::byte> elements) { file_->append(elements); }

void SafetensorsWriter::finish() {
  check(file_->written() == expected_, ErrorCode::internal,
        fmt::format("{}: {} bytes were written where {} were declared", path_,
                    file_->written().value(), expected_.value()));
  file_->finish();
}

}  // namespace spillway::model
