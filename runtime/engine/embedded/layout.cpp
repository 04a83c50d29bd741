#include "runtime/engine/embedded/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "runtime/base/error.hpp"

namespace spillway::engine {
namespace {

/// A block is complete, and its norm begins, when the gradients of all that lies in it are there.
constexpr std::uint64_t kBlockParameters = 8u << 20;
/// Staging buffers of tiles that live on disk: one is read, one updated and two written.
constexpr std::uint32_t kStagedTiles = 4;
constexpr std::uint32_t kMostSlots = 3;

void check_options(const EmbeddedOptions& options) {
  check(!options.device_memory || !options.defers_updates, ErrorCode::not_supported,
        "defers_updates does not go with device_memory in this version; leave one of them out");
  check(!options.groups.empty(), ErrorCode::invalid_argument,
        "there is no parameter group; give the options of at least one");
  check(options.tile_parameters > 0 && options.tile_parameters % kLeafParameters == 0,
        ErrorCode::invalid_argument,
        fmt::format("tile_parameters is {}; it must be a multiple of {}", options.tile_parameters,
                    kLeafParameters));
  for (const cpu_adam::AdamOptions& group : options.groups) {
    static_cast<void>(cpu_adam::make_scalars(group, 1, 1));  // names what is out of range
  }
  static_cast<void>(cpu_adam::find_kernel(options.isa.value_or(cpu_adam::best_isa()), options.dtype,
                                          options.dtype, options.state_format));
}

void check_parameters(const EmbeddedOptions& options,
                      std::span<const EmbeddedParameter> parameters) {
  check(!parameters.empty(), ErrorCode::invalid_argument,
        "there is nothing to train: register at least one parameter");
  std::set<std::string_view> names;
  for (const EmbeddedParameter& parameter : parameters) {
    const std::string_view name = parameter.name;
    check(names.insert(name).second, ErrorCode::invalid_argument,
          fmt::format("two parameters are named \"{}\"; give each a name of its own, and register "
                      "a tensor that is shared once",
                      name));
    check(parameter.elements > 0, ErrorCode::invalid_argument,
          fmt::format("parameter \"{}\" has no elements; leave it out", name));
    check(parameter.values != nullptr, ErrorCode::invalid_argument,
          fmt::format("parameter \"{}\" has no values to start from", name));
    check(!parameter.unit || options.device_memory, ErrorCode::invalid_argument,
          fmt::format("parameter \"{}\" is of unit {}, but no parameter is streamed; give "
                      "device_memory, or no units",
                      name, parameter.unit.value_or(0)));
    check(parameter.group < options.groups.size(), ErrorCode::invalid_argument,
          fmt::format("parameter \"{}\" is of group {}; there are {} groups, counted from 0", name,
                      parameter.group, options.groups.size()));
  }
}

/// Returns the parameters of no unit in their order, then those of each unit by group.
std::vector<std::size_t> order_of(std::span<const EmbeddedParameter> parameters) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t index) {
    const EmbeddedParameter& parameter = parameters[index];
    return std::pair(parameter.unit, parameter.unit ? parameter.group : 0);
  });
  return order;
}

bool opens_block(const EmbeddedParameter& last, const EmbeddedParameter& next, std::uint64_t end) {
  if (next.unit) return next.unit != last.unit;
  return next.group != last.group || end + next.elements > kBlockParameters;
}

void open_block(EmbeddedLayout& layout, const EmbeddedParameter& first) {
  if (first.unit) {
    check(*first.unit == layout.units(), ErrorCode::invalid_argument,
          fmt::format("parameter \"{}\" is of unit {}, and no parameter is of unit {}; units are "
                      "counted from 0 without gaps",
                      first.name, *first.unit, layout.units()));
  } else {
    ++layout.residents;
  }
  layout.workload.blocks.emplace_back().name = first.name;
  layout.groups.push_back({{{.end = 0, .group = first.group}, {.end = 0, .group = first.group}}});
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

/// Returns how many units the device holds at once: one that is used, one that comes, and one that
/// would otherwise wait for the other two.
std::uint32_t parameter_slots(const EmbeddedOptions& options, const EmbeddedLayout& layout) {
  const std::size_t size = size_of(options.dtype);
  Bytes resident, largest;
  for (std::uint32_t block = 0; block < layout.workload.blocks.size(); ++block) {
    const Bytes bytes{layout.workload.blocks[block].padded_parameters.value() * size};
    if (block < layout.residents) {
      resident += bytes;
    } else {
      largest = std::max(largest, bytes);
    }
  }
  check(resident + largest <= *options.device_memory, ErrorCode::does_not_fit,
        fmt::format("does not fit: {} of parameters stay on the device and the largest unit has "
                    "{}, and the budget is {}; give device memory of at least {}, or smaller units",
                    format_bytes(resident), format_bytes(largest),
                    format_bytes(*options.device_memory), format_bytes(resident + largest)));
  if (layout.units() == 0) return 0;
  const std::uint64_t room = (*options.device_memory - resident) / largest;
  return static_cast<std::uint32_t>(
      std::min({room, std::uint64_t{layout.units()}, std::uint64_t{kMostSlots}}));
}

}  // namespace

EmbeddedLayout make_layout(const EmbeddedOptions& options,
                           std::span<const EmbeddedParameter> parameters) {
  check_options(options);
  check_parameters(options, parameters);
  EmbeddedLayout layout;
  layout.workload.external = true;
  layout.workload.streams_external = options.device_memory.has_value();
  layout.workload.compute = options.dtype;
  // Gradients wait in fp32 where several are summed, as those of rounds do.
  layout.workload.rounds = options.gradients_per_step == 1 ? 1 : 2;
  layout.places.resize(parameters.size());
  std::uint64_t end = 0;  // of the block under way
  const EmbeddedParameter* last = nullptr;
  for (const std::size_t index : order_of(parameters)) {
    const EmbeddedParameter& parameter = parameters[index];
    if (last == nullptr || opens_block(*last, parameter, end)) {
      open_block(layout, parameter);
      end = 0;
    }
    last = &parameter;
    const auto block = static_cast<std::uint32_t>(layout.workload.blocks.size() - 1);
    layout.places[index] = {.block = block, .first = end, .count = parameter.elements};
    ++layout.parameters.back();
    end = round_up(end + parameter.elements, kLeafParameters);
    extend_block(layout, parameter, end);
  }
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
  return placement;
}

}  // namespace spillway::engine
