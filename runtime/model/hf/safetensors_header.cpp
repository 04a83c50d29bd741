#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/json.hpp"
#include "runtime/model/hf/safetensors.hpp"

namespace spillway::model {
namespace {

struct StoredType {
  std::string_view name;
  std::uint32_t bits;
};

constexpr auto kTypes = std::to_array<StoredType>(
    {{"F32", 32},    {"BF16", 16},   {"F16", 16},        {"F64", 64},        {"C64", 64},
     {"I64", 64},    {"U64", 64},    {"I32", 32},        {"U32", 32},        {"I16", 16},
     {"U16", 16},    {"I8", 8},      {"U8", 8},          {"BOOL", 8},        {"F8_E4M3", 8},
     {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6},
     {"F6_E3M2", 6}, {"F4", 4}});

/// Shapes beyond this are no tensors, and would make the header a way to use up memory.
constexpr std::size_t kMaxRank = 64;

/// A tensor while its entry is being read.
struct Entry {
  std::string name;
  std::optional<std::string> type;
  std::optional<std::vector<std::uint64_t>> shape;
  std::optional<std::vector<std::uint64_t>> offsets;
};

/// Follows the header token by token, so that a large one is never held as a document too.
/// Level 1 is the document, 2 a tensor or the metadata, 3 a shape or the offsets.
class HeaderHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderHandler(std::string_view origin) : origin_(origin) {}

  SafetensorsHeader header;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;  ///< [begin, end) in the data

  bool start_object(std::size_t) override {
    expect(level_ == 0 || (level_ == 1 && array_ == nullptr), "an object");
    ++level_;
    return true;
  }

  bool end_object() override {
    if (level_ == 2 && !in_metadata_) finish_tensor();
    if (level_ == 2) in_metadata_ = false;
    --level_;
    return true;
  }

  bool key(string_t& name) override {
    if (level_ == 1) {
      in_metadata_ = name == "__metadata__";
      const bool repeated =
          in_metadata_ ? std::exchange(seen_metadata_, true) : header.tensors.contains(name);
      if (repeated) fail(fmt::format("{} appears twice", brief_name(name)));
      entry_ = {.name = name, .type = {}, .shape = {}, .offsets = {}};
    }
    key_ = name;
    return true;
  }

  bool string(string_t& value) override {
    if (level_ == 2 && in_metadata_) {
      if (!header.metadata.emplace(key_, value).second) {
        fail(fmt::format("the metadata {} appears twice", brief_name(key_)));
      }
      return true;
    }
    expect(level_ == 2 && key_ == "dtype" && !entry_.type, "a string");
    entry_.type = value;
    return true;
  }

  bool start_array(std::size_t) override {
    expect(level_ == 2 && !in_metadata_ && array_ == nullptr, "a list");
    if (key_ == "shape" && !entry_.shape) {
      array_ = &entry_.shape.emplace();
    } else if (key_ == "data_offsets" && !entry_.offsets) {
      array_ = &entry_.offsets.emplace();
    } else {
      expect(/*allowed=*/false, "a list");
    }
    return true;
  }

  bool end_array() override {
    array_ = nullptr;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    expect(array_ != nullptr, "a number");
    if (array_->size() == kMaxRank) {
      fail(fmt::format("{} has a list of more than {} numbers", brief_name(entry_.name), kMaxRank));
    }
    array_->push_back(value);
    return true;
  }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a fraction or a number beyond 64 bits");
  }
  bool binary(binary_t&) override { return unexpected("binary"); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    fail(fmt::format("its header is not valid JSON at byte {}", position));
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::corrupt_data, fmt::format("{}: {}", origin_, what));
  }
  bool unexpected(std::string_view what) const {
    expect(/*allowed=*/false, what);
    return false;
  }
  void expect(bool allowed, std::string_view what) const {
    if (allowed) return;
    if (level_ == 0) fail("its header is not a JSON object");
    fail(fmt::format("{}: {} does not belong at {}", brief_name(entry_.name), what,
                     brief_name(key_)));
  }

  void finish_tensor();

  std::string_view origin_;
  std::size_t level_ = 0;
  bool in_metadata_ = false;
  bool seen_metadata_ = false;
  std::string key_;
  Entry entry_;
  std::vector<std::uint64_t>* array_ = nullptr;
};

void HeaderHandler::finish_tensor() {
  const std::string name = brief_name(entry_.name);
  if (!entry_.type || !entry_.shape || !entry_.offsets) {
    fail(fmt::format("{} lacks {}", name,
                     !entry_.type    ? "dtype"
                     : !entry_.shape ? "shape"
                                     : "data_offsets"));
  }
  const auto type = std::ranges::find(kTypes, std::string_view(*entry_.type), &StoredType::name);
  if (type == kTypes.end()) {
    fail(fmt::format("{} has the unknown dtype {}", name, brief_name(*entry_.type)));
  }
  if (entry_.offsets->size() != 2) fail(fmt::format("{} needs two data_offsets", name));
  const std::uint64_t begin = entry_.offsets->front();
  const std::uint64_t end = entry_.offsets->back();
  if (begin > end) fail(fmt::format("{} ends at byte {}, before it begins", name, end));

  std::uint64_t bits = type->bits;
  for (const std::uint64_t extent : *entry_.shape) {
    if (extent != 0 && bits > std::numeric_limits<std::uint64_t>::max() / extent) {
      fail(fmt::format("{} has a shape [{}] beyond 2^64 bits", name,
                       fmt::join(*entry_.shape, ", ")));
    }
    bits *= extent;
  }
  if (bits % 8 != 0 || bits / 8 != end - begin) {
    fail(fmt::format("{} is {} with shape [{}], {} bits, in {} bytes", name, type->name,
                     fmt::join(*entry_.shape, ", "), bits, end - begin));
  }
  places.emplace_back(begin, end);
  header.tensors.emplace(std::move(entry_.name), StoredTensor{.type = std::move(*entry_.type),
                                                              .shape = std::move(*entry_.shape),
                                                              .offset = FileOffset{begin},
                                                              .size = Bytes{end - begin}});
}

/// The tensors must tile the data: sorted by place, each begins where the one before it ends.
void check_places(std::vector<std::pair<std::uint64_t, std::uint64_t>>& places, Bytes data_size,
                  std::string_view origin) {
  std::ranges::sort(places);
  std::uint64_t next = 0;
  for (const auto& [begin, end] : places) {
    check(begin == next, ErrorCode::corrupt_data,
          fmt::format("{}: a tensor begins at byte {} of the data where {} was expected: a {}",
                      origin, begin, next, begin < next ? "overlap" : "hole"));
    next = end;
  }
  check(next == data_size.value(), ErrorCode::corrupt_data,
        fmt::format("{}: its header describes {} bytes of tensors and {} follow; the file is {}",
                    origin, next, data_size.value(),
                    next > data_size.value() ? "cut short, copy it again" : "too long"));
}

}  // namespace

ElementCount StoredTensor::count() const {
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : shape) elements *= extent;
  return ElementCount{elements};
}

std::optional<DType> StoredTensor::dtype() const {
  if (type == "F32") return DType::fp32;
  if (type == "BF16") return DType::bf16;
  if (type == "F16") return DType::fp16;
  return std::nullopt;
}

Bytes safetensors_header_size(std::span<const std::byte> first_bytes, Bytes file_size,
                              std::string_view origin) {
  check(first_bytes.size() >= 8 && file_size.value() >= 8, ErrorCode::corrupt_data,
        fmt::format("{}: {} bytes are too few for a safetensors file", origin, file_size.value()));
  std::uint64_t size = 0;
  for (std::size_t i = 8; i > 0; --i) {
    size = size << 8 | std::to_integer<std::uint64_t>(first_bytes[i - 1]);
  }
  check(size <= kMaxSafetensorsHeader && size <= file_size.value() - 8, ErrorCode::corrupt_data,
        fmt::format("{}: a header of {} bytes in a file of {}; it is cut short or not safetensors",
                    origin, size, file_size.value()));
  return Bytes{size};
}

SafetensorsHeader parse_safetensors_header(std::string_view header, Bytes data_size,
                                           std::string_view origin) {
  // The format wants the document from the first byte on; spaces may pad its end.
  check(header.starts_with('{'), ErrorCode::corrupt_data,
        fmt::format("{}: its header does not start with a brace; it is not safetensors", origin));
  HeaderHandler handler(origin);
  nlohmann::json::sax_parse(header.begin(), header.end(), &handler);
  check_places(handler.places, data_size, origin);
  for (auto& [name, tensor] : handler.header.tensors) {
    tensor.offset += FileOffset{8 + header.size()};
  }
  return std::move(handler.header);
}

}  // namespace spillway::model
