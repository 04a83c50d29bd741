// Any bytes as the header of a safetensors file: an Error, or tensors that lie inside the file.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/model/hf/safetensors.hpp"

namespace {

using spillway::Bytes;
using spillway::Error;

/// Bytes 0 and 1: size of the data behind the header. The rest: the header.
void parse(std::span<const std::uint8_t> input) {
  if (input.size() < 2) return;
  const Bytes data{input[0] | std::uint64_t{input[1]} << 8};
  const auto text = input.subspan(2);
  const std::string_view header(reinterpret_cast<const char*>(text.data()), text.size());
  const auto parsed = spillway::model::parse_safetensors_header(header, data, "input");
  std::uint64_t covered = 0;
  for (const auto& [name, tensor] : parsed.tensors) {
    SPILLWAY_ASSERT(tensor.offset.value() >= 8 + header.size());
    SPILLWAY_ASSERT(tensor.offset.value() + tensor.size.value() <=
                    8 + header.size() + data.value());
    const auto dtype = tensor.dtype();
    SPILLWAY_ASSERT(!dtype ||
                    tensor.count().value() * spillway::size_of(*dtype) == tensor.size.value());
    covered += tensor.size.value();
  }
  SPILLWAY_ASSERT(covered == data.value());
}

/// The first bytes of a file of arbitrary size.
void parse_size(std::span<const std::uint8_t> input) {
  const Bytes file{input.empty() ? 0 : std::uint64_t{input.back()} << (input.size() % 32)};
  const Bytes size = spillway::model::safetensors_header_size(std::as_bytes(input), file, "input");
  SPILLWAY_ASSERT(size.value() + 8 <= file.value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const auto target : {parse, parse_size}) {
    try {
      target({data, size});
    } catch (const Error& error) {
      SPILLWAY_ASSERT(error.code() == spillway::ErrorCode::corrupt_data);
    }
  }
  return 0;
}
