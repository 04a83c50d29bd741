// Structures that cross the C interface, in both directions between headers of different age. Each
// begins with its size. Any thread may call anything here.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/capi/spillway.h"

namespace spillway::capi {

/// Size of a structure in the first header of this ABI version: no caller has a smaller one.
template <class Structure>
inline constexpr std::uint32_t kFirstSize = 0;
template <>
inline constexpr std::uint32_t kFirstSize<spillway_tensor> = 40;
template <>
inline constexpr std::uint32_t kFirstSize<spillway_group> = 56;
template <>
inline constexpr std::uint32_t kFirstSize<spillway_options> = 72;
template <>
inline constexpr std::uint32_t kFirstSize<spillway_step_options> = 24;
template <>
inline constexpr std::uint32_t kFirstSize<spillway_step_result> = 24;
template <>
inline constexpr std::uint32_t kFirstSize<spillway_memory_row> = 32;
template <>
inline constexpr std::uint32_t kFirstSize<spillway_lane_row> = 32;

/// Throws `Error{invalid_argument}` unless `given` states a possible size.
template <class Structure>
void check_size(const Structure* given, std::string_view name) {
  static_assert(kFirstSize<Structure> > 0 && kFirstSize<Structure> <= sizeof(Structure));
  check(given != nullptr, ErrorCode::invalid_argument,
        fmt::format("{} is a null pointer: pass the address of one", name));
  // A larger one would be an address or a number that is no size at all.
  check(given->size >= kFirstSize<Structure> && given->size <= 4096, ErrorCode::invalid_argument,
        fmt::format("{} says that its size is {} bytes, which is {}: make it from its "
                    "SPILLWAY_..._INIT",
                    name, given->size, sizeof(Structure)));
}

/// Throws `Error{invalid_argument}` unless a reserved member is 0: a later library may give it a
/// meaning.
inline void check_reserved(std::int64_t value, std::string_view name, std::string_view member) {
  check(value == 0, ErrorCode::invalid_argument,
        fmt::format("{} has {} {}, which must be 0: make it from its SPILLWAY_..._INIT", name,
                    member, value));
}

/// Returns what the caller gives: members that its header lacks are 0. Refuses members that this
/// library does not know, and reserved ones, unless they are 0.
template <class Structure>
Structure read_structure(const Structure* given, std::string_view name) {
  check_size(given, name);
  const std::size_t known = std::min<std::size_t>(given->size, sizeof(Structure));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  check(std::all_of(bytes + known, bytes + given->size, [](unsigned char c) { return c == 0; }),
        ErrorCode::not_supported,
        fmt::format("{} has members behind byte {}, which this library (ABI {}) does not know: use "
                    "the header of this library, or set them to 0",
                    name, known, SPILLWAY_ABI_VERSION));
  Structure result{};
  std::memcpy(&result, given, known);
  if constexpr (requires { result.reserved; }) check_reserved(result.reserved, name, "reserved");
  if constexpr (requires { result.reserved2; }) check_reserved(result.reserved2, name, "reserved2");
  return result;
}

/// Gives the caller what its header knows of `value`; members beyond this library's are 0.
template <class Structure>
void write_structure(Structure* target, Structure value, std::string_view name) {
  check_size(target, name);
  value.size = target->size;
  auto* bytes = reinterpret_cast<unsigned char*>(target);
  const std::size_t known = std::min<std::size_t>(value.size, sizeof(Structure));
  std::memcpy(bytes, &value, known);
  std::fill(bytes + known, bytes + value.size, static_cast<unsigned char>(0));
}

}  // namespace spillway::capi
