#include "runtime/engine/embedded/plan/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/json.hpp"

namespace spillway::engine {
namespace {

/// A block is complete, and its norm begins, when the gradients of all that lies in it are there.
constexpr std::uint64_t kBlockParameters = 8u << 20;
/// Staging buffers of tiles that live on disk: one is read, one updated and two written.
constexpr std::uint32_t kStagedTiles = 4;
/// Frozen tensors begin on multiples of as many bytes, as parameters do.
constexpr std::uint64_t kFrozenAlignment = 64;

void check_options(const EmbeddedOptions& options) {
  check(!options.groups.empty(), ErrorCode::invalid_argument,
        "there is no parameter group; give the options of at least one");
  check(options.tile_parameters > 0 && options.tile_parameters % kLeafParameters == 0,
        ErrorCode::invalid_argument,
        fmt::format("tile_parameters is {}; it must be a multiple of {}", options.tile_parameters,
                    kLeafParameters));
  check(options.frozen_nvme.empty() || !options.frozen_pages, ErrorCode::invalid_argument,
        "frozen tensors in pages of several processes are in memory; leave frozen_nvme out");
  for (const cpu_adam::AdamOptions& group : options.groups) {
    static_cast<void>(cpu_adam::make_scalars(group, 1, 1));  // its error names what is out of range
  }
  static_cast<void>(cpu_adam::find_kernel(cpu_adam::isa_or_best(options.isa), options.dtype,
                                          options.dtype, options.state_format));
}

/// A name is text in checkpoints and in errors.
void check_name(std::string_view name) {
  check(is_utf8(name), ErrorCode::invalid_argument,
        fmt::format("the name {} is not UTF-8; give one that is", brief_name(name)));
}

void check_parameters(const EmbeddedOptions& options,
                      std::span<const EmbeddedParameter> parameters) {
  check(!parameters.empty(), ErrorCode::invalid_argument,
        "there is nothing to train: register at least one parameter");
  std::set<std::string_view> names;
  for (const EmbeddedParameter& parameter : parameters) {
    const std::string_view name = parameter.name;
    check_name(name);
    check(names.insert(name).second, ErrorCode::invalid_argument,
          fmt::format("two parameters are named \"{}\"; give each a name of its own, and register "
                      "a tensor that is shared once",
                      name));
    check(parameter.elements > 0, ErrorCode::invalid_argument,
          fmt::format("parameter \"{}\" has no elements; leave it out", name));
    check(!parameter.unit || options.device_memory, ErrorCode::invalid_argument,
          fmt::format("parameter \"{}\" is of unit {}, but no parameter is streamed; give "
                      "device_memory, or no units",
                      name, parameter.unit.value_or(0)));
    check(parameter.group < options.groups.size(), ErrorCode::invalid_argument,
          fmt::format("parameter \"{}\" is of group {}; there are {} groups, counted from 0", name,
                      parameter.group, options.groups.size()));
  }
}

void check_frozen(const EmbeddedOptions& options, std::span<const EmbeddedParameter> parameters,
                  std::span<const FrozenTensor> frozen) {
  std::set<std::string_view> names;
  for (const EmbeddedParameter& parameter : parameters) names.insert(parameter.name);
  for (const FrozenTensor& tensor : frozen) {
    check_name(tensor.name);
    check(
        options.device_memory.has_value(), ErrorCode::invalid_argument,
        fmt::format("\"{}\" is frozen, but no parameter is streamed; give device_memory, or leave "
                    "the tensor where it is",
                    tensor.name));
    check(names.insert(tensor.name).second, ErrorCode::invalid_argument,
          fmt::format("two tensors are named \"{}\"; give each a name of its own", tensor.name));
    check(tensor.bytes > Bytes{}, ErrorCode::invalid_argument,
          fmt::format("\"{}\" is frozen and has no bytes; leave it out", tensor.name));
  }
}

/// Returns how many units there are.
std::uint32_t count_units(std::span<const EmbeddedParameter> parameters,
                          std::span<const FrozenTensor> frozen) {
  std::map<std::uint32_t, std::string_view> units;
  for (const EmbeddedParameter& parameter : parameters) {
    if (parameter.unit) units.emplace(*parameter.unit, parameter.name);
  }
  for (const FrozenTensor& tensor : frozen) {
    if (tensor.unit) units.emplace(*tensor.unit, tensor.name);
  }
  std::uint32_t count = 0;
  for (const auto& [unit, name] : units) {
    check(unit == count, ErrorCode::invalid_argument,
          fmt::format("\"{}\" is of unit {}, and nothing is of unit {}; units are counted from 0 "
                      "without gaps",
                      name, unit, count));
    ++count;
  }
  return count;
}

/// Returns the parameters of no unit in their order, then those of each unit by group.
std::vector<std::uint32_t> order_of(std::span<const EmbeddedParameter> parameters) {
  std::vector<std::uint32_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::uint32_t index) {
    const EmbeddedParameter& parameter = parameters[index];
    return std::pair(parameter.unit, parameter.unit ? parameter.group : 0);
  });
  return order;
}

/// Whether a parameter of no unit begins a block of its own.
bool opens_block(const EmbeddedLayout& layout, const EmbeddedParameter& next) {
  if (layout.residents == 0) return true;
  const std::uint64_t end = layout.workload.blocks.back().padded_parameters.value();
  return next.group != layout.groups.back()[0].group || end + next.elements > kBlockParameters;
}

void open_block(EmbeddedLayout& layout, std::uint32_t group) {
  layout.workload.blocks.emplace_back();
  layout.groups.push_back({{{.end = 0, .group = group}, {.end = 0, .group = group}}});
  layout.parameters.push_back(0);
}

/// Makes room up to `end` in the last block, for `parameter`, which ends it so far.
void extend_block(EmbeddedLayout& layout, const EmbeddedParameter& parameter, std::uint64_t end) {
  plan::BlockShape& shape = layout.workload.blocks.back();
  BlockGroups& parts = layout.groups.back();
  const std::uint64_t before = shape.parameters.value();
  shape.parameters = ElementCount{end};
  shape.padded_parameters = ElementCount{end};
  if (parameter.group != parts[1].group) {
    check(parts[0].group == parts[1].group, ErrorCode::invalid_argument,
          fmt::format("parameter \"{}\" is of group {}, the third in unit {}; a unit has at most "
                      "two groups",
                      parameter.name, parameter.group, parameter.unit.value_or(0)));
    parts[0].end = before;
    parts[1].group = parameter.group;
  }
  if (parts[0].group == parts[1].group) parts[0].end = end;
  parts[1].end = end;
}

/// Places a parameter behind the others of the last block.
void add_parameter(EmbeddedLayout& layout, const EmbeddedParameter& parameter,
                   ParameterRange& range) {
  plan::BlockShape& shape = layout.workload.blocks.back();
  if (shape.name.empty()) shape.name = parameter.name;
  range = {.block = static_cast<std::uint32_t>(layout.workload.blocks.size() - 1),
           .first = shape.padded_parameters.value(),
           .count = parameter.elements};
  ++layout.parameters.back();
  extend_block(layout, parameter, round_up(range.first + range.count, kLeafParameters));
}

/// Places a frozen tensor behind the others of its unit, or of no unit.
void add_frozen(EmbeddedLayout& layout, const FrozenTensor& tensor) {
  layout.frozen_names.push_back(tensor.name);
  FrozenRange& range = layout.frozen.emplace_back();
  Bytes* whole = &layout.workload.resident_frozen_bytes;
  if (tensor.unit) {
    range.block = layout.residents + *tensor.unit;
    plan::BlockShape& shape = layout.workload.blocks[*range.block];
    if (shape.name.empty()) shape.name = tensor.name;
    whole = &shape.frozen_bytes;
  }
  range.first = round_up(whole->value(), kFrozenAlignment);
  range.bytes = tensor.bytes.value();
  *whole = Bytes{range.first + range.bytes};
}

/// Returns how many units the device holds at once: one that is used, one that comes, and one that
/// would otherwise wait for the other two.
std::uint32_t parameter_slots(const EmbeddedOptions& options, const EmbeddedLayout& layout) {
  const std::size_t size = size_of(options.dtype);
  Bytes resident = layout.workload.resident_frozen_bytes, trained, frozen;
  for (std::uint32_t block = 0; block < layout.workload.blocks.size(); ++block) {
    const plan::BlockShape& shape = layout.workload.blocks[block];
    const Bytes bytes{shape.padded_parameters.value() * size};
    if (layout.is_streamed(block)) {
      trained = std::max(trained, bytes);
      frozen = std::max(frozen, shape.frozen_bytes);
    } else {
      resident += bytes;
    }
  }
  const Bytes largest = trained + frozen;
  check(resident + largest <= *options.device_memory, ErrorCode::does_not_fit,
        fmt::format("does not fit: {} of parameters stay on the device and the largest unit has "
                    "{}, and the budget is {}; give device memory of at least {}, or smaller units",
                    format_bytes(resident), format_bytes(largest),
                    format_bytes(*options.device_memory), format_bytes(resident + largest)));
  if (layout.units() == 0) return 0;
  const std::uint64_t room = (*options.device_memory - resident) / largest;
  return static_cast<std::uint32_t>(
      std::min({room, std::uint64_t{layout.units()}, std::uint64_t{kMostUnitSlots}}));
}

/// Places frozen tensors of units on disk. A unit's are read while those of another wait for their
/// upload, and on each further drive those of one more.
void place_frozen_on_disk(plan::Placement& placement, const EmbeddedOptions& options,
                          const EmbeddedLayout& layout) {
  std::uint32_t units = 0;
  for (std::uint32_t block = layout.residents; block < layout.workload.blocks.size(); ++block) {
    if (layout.workload.blocks[block].frozen_bytes == Bytes{}) continue;
    placement.blocks[block].parameters = plan::Tier::nvme;
    ++units;
  }
  const auto drives = static_cast<std::uint32_t>(options.frozen_nvme.size());
  placement.frozen_staging = std::min(units, drives + 1);
}

}  // namespace

bool sums_gradients(const EmbeddedOptions& options) { return options.gradients_per_step != 1; }

void check_number(std::string_view what, std::uint32_t number, std::size_t count) {
  check(number < count, ErrorCode::invalid_argument,
        fmt::format("there is no {} {}; there are {}, counted from 0", what, number, count));
}

std::uint32_t group_of(const EmbeddedLayout& layout, const ParameterRange& range) {
  return std::ranges::find_if(layout.groups[range.block],
                              [&](const GroupPart& part) { return range.first < part.end; })
      ->group;
}

EmbeddedLayout make_layout(const EmbeddedOptions& options,
                           std::span<const EmbeddedParameter> parameters,
                           std::span<const FrozenTensor> frozen) {
  check_options(options);
  check_parameters(options, parameters);
  check_frozen(options, parameters, frozen);
  EmbeddedLayout layout;
  layout.workload.external = true;
  layout.workload.streams_external = options.device_memory.has_value();
  layout.workload.compute = options.dtype;
  // Gradients wait in fp32 where several are summed, as those of rounds do.
  layout.workload.rounds = sums_gradients(options) ? 2 : 1;
  for (const EmbeddedParameter& parameter : parameters) layout.names.push_back(parameter.name);
  layout.ranges.resize(parameters.size());
  layout.order = order_of(parameters);
  auto next = layout.order.cbegin();
  for (; next != layout.order.cend() && !parameters[*next].unit; ++next) {
    if (opens_block(layout, parameters[*next])) {
      open_block(layout, parameters[*next].group);
      ++layout.residents;
    }
    add_parameter(layout, parameters[*next], layout.ranges[*next]);
  }
  const std::uint32_t units = count_units(parameters, frozen);
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    const auto is_of_unit = [&] {
      return next != layout.order.cend() && parameters[*next].unit == unit;
    };
    open_block(layout, is_of_unit() ? parameters[*next].group : 0);
    for (; is_of_unit(); ++next) {
      add_parameter(layout, parameters[*next], layout.ranges[*next]);
    }
  }
  for (const FrozenTensor& tensor : frozen) add_frozen(layout, tensor);
  return layout;
}

plan::Placement embedded_placement(const EmbeddedOptions& options, const EmbeddedLayout& layout) {
  const plan::Tier state = options.nvme.empty() ? plan::Tier::host : plan::Tier::nvme;
  plan::Placement placement;
  placement.blocks.assign(
      layout.workload.blocks.size(),
      {.parameters = plan::Tier::host, .gradients = plan::Tier::host, .state = state});
  placement.format = options.state_format;
  placement.tile_parameters = ElementCount{options.tile_parameters};
  // Where all state lies in memory, one carries tiles to and from checkpoints.
  placement.state_slots = state == plan::Tier::nvme ? kStagedTiles : 1;
  placement.parameter_slots = 0;
  if (!options.device_memory && options.device == config::DeviceKind::host) return placement;
  for (std::uint32_t block = 0; block < layout.residents; ++block) {
    placement.blocks[block].parameters = plan::Tier::device;
  }
  if (options.device_memory) placement.parameter_slots = parameter_slots(options, layout);
  if (!options.frozen_nvme.empty()) place_frozen_on_disk(placement, options, layout);
  return placement;
}

}  // namespace spillway::engine
