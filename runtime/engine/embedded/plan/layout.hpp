// EmbeddedLayout: how registered parameters lie in blocks, the units of streaming and of the norm.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine/embedded_trainer.hpp"
#include "runtime/engine/step/update_setup.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// Where a parameter lies in its block. It starts on a leaf, so that no two parameters share a leaf
/// of the norm or a scale of format int8: no bit depends on what else is registered, or where.
struct ParameterRange {
  std::uint32_t block = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

/// Where a frozen tensor lies among those of its block, or of all that stay on the device.
struct FrozenRange {
  std::optional<std::uint32_t> block;
  std::uint64_t first = 0;
  std::uint64_t bytes = 0;
};

struct EmbeddedLayout {
  std::vector<std::string> names, frozen_names;  ///< of parameters, and of frozen tensors
  std::vector<ParameterRange> ranges;            ///< by parameter
  std::vector<FrozenRange> frozen;               ///< by frozen tensor
  std::vector<std::uint32_t> order;  ///< parameters in the order of blocks and of ranges there
  plan::Workload workload;
  std::vector<BlockGroups> groups;        ///< by block
  std::vector<std::uint32_t> parameters;  ///< by block: how many lie in it
  std::uint32_t residents = 0;            ///< blocks of no unit; those of units follow in order

  /// Whether passes read parameters on the device, to which those of units come for each pass.
  [[nodiscard]] bool streams() const { return workload.streams_external; }
  [[nodiscard]] bool is_streamed(std::uint32_t block) const { return block >= residents; }
  [[nodiscard]] std::uint32_t units() const {
    return static_cast<std::uint32_t>(workload.blocks.size()) - residents;
  }
};

/// Whether a parameter may have several gradients in a step, which are added up in fp32 on the
/// host.
[[nodiscard]] bool sums_gradients(const EmbeddedOptions& options);

/// Throws `Error{invalid_argument}` unless there is a `what` of that number.
void check_number(std::string_view what, std::uint32_t number, std::size_t count);

/// Returns the group of what lies there.
[[nodiscard]] std::uint32_t group_of(const EmbeddedLayout& layout, const ParameterRange& range);

/// Packs parameters into blocks: those of no unit in their order, each block of one group and a
/// large parameter by itself; then each unit into one block, with what is frozen of it. Throws
/// `Error{invalid_argument}` for a parameter without elements, with a name that another has, or of
/// a group that the options lack, and for options that no trainer can have. Values are not read.
[[nodiscard]] EmbeddedLayout make_layout(const EmbeddedOptions& options,
                                         std::span<const EmbeddedParameter> parameters,
                                         std::span<const FrozenTensor> frozen = {});

/// Returns the placement of all state in one tier, and of streamed parameters in as many slots of
/// the device as help. Throws `Error{does_not_fit}` where it has no room for one.
[[nodiscard]] plan::Placement embedded_placement(const EmbeddedOptions& options,
                                                 const EmbeddedLayout& layout);

}  // namespace spillway::engine
