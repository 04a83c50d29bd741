#include "runtime/capi/detail/tensor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <optional>
#include <string>

#include "runtime/base/error.hpp"
#include "runtime/capi/detail/status.hpp"
#include "runtime/capi/detail/structures.hpp"

namespace spillway::capi {
namespace {

/// Has the layout of DLTensor, which DLPack has kept from 0.2 to 1.x.
struct DlTensor {
  void* data;
  std::int32_t device_type;
  std::int32_t device_id;
  std::int32_t dimensions;
  std::uint8_t type_code;  ///< 2: IEEE, 4: bfloat16
  std::uint8_t type_bits;
  std::uint16_t type_lanes;
  const std::int64_t* shape;
  const std::int64_t* strides;  ///< in elements; null: dense
  std::uint64_t byte_offset;
};
static_assert(sizeof(DlTensor) == 48);
constexpr std::uint8_t kIeee = 2;
constexpr std::uint8_t kBfloat = 4;

constexpr std::int32_t kMostDimensions = 64;

std::optional<DType> find_dtype(std::int32_t number) {
  switch (number) {
    case SPILLWAY_FP32: return DType::fp32;
    case SPILLWAY_BF16: return DType::bf16;
    case SPILLWAY_FP16: return DType::fp16;
    default: return std::nullopt;
  }
}

void check_device(const spillway_tensor& tensor, std::string_view what) {
  if (tensor.device >= SPILLWAY_CPU && tensor.device <= SPILLWAY_CUDA_HOST) return;
  throw Error(ErrorCode::not_supported,
              fmt::format("{} lies on device {}:{} (in DLPack's numbers), and this version knows "
                          "memory of the host and of CUDA: copy it to the host first",
                          what, tensor.device, tensor.device_index));
}

std::uint64_t count_elements(std::span<const std::int64_t> shape, std::string_view what) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max() / sizeof(float);
  std::uint64_t elements = 1;
  for (const std::int64_t length : shape) {
    check(
        length > 0 && static_cast<std::uint64_t>(length) <= kMost / elements,
        ErrorCode::invalid_argument,
        fmt::format("{} has the shape {}: every length must be at least 1, and their product less "
                    "than 2^61; leave empty parameters out",
                    what, shape_text(shape)));
    elements *= static_cast<std::uint64_t>(length);
  }
  return elements;
}

/// Whether the strides are those of rows without gaps. A length of 1 has no stride to speak of.
bool is_dense(const DlTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t expected = 1;
  for (std::int32_t i = tensor.dimensions - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

std::int32_t dtype_of(const DlTensor& tensor) {
  if (tensor.type_lanes == 1 && tensor.type_code == kIeee) {
    if (tensor.type_bits == 32) return SPILLWAY_FP32;
    if (tensor.type_bits == 16) return SPILLWAY_FP16;
  }
  if (tensor.type_lanes == 1 && tensor.type_code == kBfloat && tensor.type_bits == 16) {
    return SPILLWAY_BF16;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the DLTensor's type has code {}, {} bits and {} lanes: convert it to "
                          "float32 (2, 32, 1), float16 (2, 16, 1) or bfloat16 (4, 16, 1)",
                          tensor.type_code, tensor.type_bits, tensor.type_lanes));
}

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void check_on_host(const Tensor& tensor, std::string_view what) {
  check(tensor.device != SPILLWAY_CUDA, ErrorCode::not_supported,
        fmt::format("{} lies on device {}:{} (in DLPack's numbers), and is read on the host: copy "
                    "it to the host first",
                    what, tensor.device, tensor.device_index));
}

Tensor read_tensor(const spillway_tensor* given, std::string_view what) {
  const auto tensor = read_structure(given, fmt::format("the spillway_tensor of {}", what));
  const std::optional<DType> dtype = find_dtype(tensor.dtype);
  check(dtype.has_value(), ErrorCode::invalid_argument,
        fmt::format("{} has dtype {}: there are SPILLWAY_FP32, SPILLWAY_BF16 and SPILLWAY_FP16",
                    what, tensor.dtype));
  check_device(tensor, what);
  check(
      tensor.dimensions >= 0 && tensor.dimensions <= kMostDimensions &&
          (tensor.dimensions == 0 || tensor.shape != nullptr),
      ErrorCode::invalid_argument,
      fmt::format("{} has {} dimensions and {} shape: there must be 0 to {}, and a length for each",
                  what, tensor.dimensions, tensor.shape == nullptr ? "no" : "a", kMostDimensions));
  const std::span shape(tensor.shape, static_cast<std::size_t>(tensor.dimensions));
  const std::uint64_t elements = count_elements(shape, what);
  const std::size_t size = size_of(*dtype);
  check(
      tensor.data != nullptr && reinterpret_cast<std::uintptr_t>(tensor.data) % size == 0,
      ErrorCode::invalid_argument,
      fmt::format("{} has its data at {}: give the address of the first element, a multiple of {}",
                  what, tensor.data, size));
  return {*dtype,
          shape,
          elements,
          {static_cast<const std::byte*>(tensor.data), static_cast<std::size_t>(elements * size)},
          tensor.device,
          tensor.device_index};
}

}  // namespace spillway::capi

using spillway::check;
using spillway::ErrorCode;
namespace capi = spillway::capi;

spillway_status spillway_tensor_from_dlpack(const void* dl_tensor, spillway_tensor* tensor) {
  return capi::guarded([&] {
    check(dl_tensor != nullptr, ErrorCode::invalid_argument,
          "the DLTensor is a null pointer: pass the address of a dl_tensor");
    const auto& source = *static_cast<const capi::DlTensor*>(dl_tensor);
    check(source.dimensions >= 0 && source.dimensions <= capi::kMostDimensions,
          ErrorCode::invalid_argument,
          fmt::format("the DLTensor has {} dimensions: there are 0 to {}; pass the address of the "
                      "member dl_tensor and not of the structure around it",
                      source.dimensions, capi::kMostDimensions));
    check(
        capi::is_dense(source), ErrorCode::invalid_argument,
        fmt::format("the DLTensor's strides leave gaps or turn its dimensions around (shape {}): "
                    "make it contiguous first",
                    capi::shape_text({source.shape, static_cast<std::size_t>(source.dimensions)})));
    spillway_tensor result = SPILLWAY_TENSOR_INIT;
    result.dtype = capi::dtype_of(source);
    result.device = source.device_type;
    result.device_index = source.device_id;
    result.data = static_cast<std::byte*>(source.data) + source.byte_offset;
    result.shape = source.shape;
    result.dimensions = source.dimensions;
    capi::write_structure(tensor, result, "the spillway_tensor");
  });
}

spillway_status spillway_tensor_to_dlpack(const spillway_tensor* tensor, int64_t* strides,
                                          void* dl_tensor) {
  return capi::guarded([&] {
    check(dl_tensor != nullptr, ErrorCode::invalid_argument,
          "the DLTensor is a null pointer: pass the address of one");
    const capi::Tensor given = capi::read_tensor(tensor, "the tensor");
    if (strides != nullptr) {
      std::int64_t stride = 1;
      for (std::size_t i = given.shape.size(); i-- > 0; stride *= given.shape[i])
        strides[i] = stride;
    }
    *static_cast<capi::DlTensor*>(dl_tensor) = {
        .data = tensor->data,
        .device_type = tensor->device,
        .device_id = tensor->device_index,
        .dimensions = tensor->dimensions,
        .type_code = given.dtype == spillway::DType::bf16 ? capi::kBfloat : capi::kIeee,
        .type_bits = static_cast<std::uint8_t>(8 * spillway::size_of(given.dtype)),
        .type_lanes = 1,
        .shape = tensor->shape,
        .strides = strides,
        .byte_offset = 0};
  });
}
