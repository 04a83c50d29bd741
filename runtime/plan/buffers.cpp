#include "runtime/plan/buffers.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>

namespace spillway::plan {
namespace {

constexpr std::array<std::string_view, kValueKindCount> kValues{
    "parameters",        "frozen",   "state",          "checksum",    "gradient_sum",
    "tied_gradient_sum", "gradient", "total_gradient", "norm_leaves", "boundary",
    "boundary_gradient", "saved",    "scanned",        "normal",      "gathered_scans",
    "between_tiles",     "tokens",   "loss",           "logits",      "scratch",
};

}  // namespace

std::string_view name_of(ValueKind kind) { return kValues[static_cast<std::size_t>(kind)]; }

std::string to_text(const Buffer& buffer) {
  if (buffer.count == 1) return fmt::format("{} {}", name_of(buffer.pool), buffer.first);
  return fmt::format("{} {}..{}", name_of(buffer.pool), buffer.first,
                     buffer.first + buffer.count - 1);
}

}  // namespace spillway::plan
