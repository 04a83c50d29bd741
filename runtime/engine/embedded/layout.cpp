#include "runtime/engine/embedded/layout.hpp"

#include <fmt/format.h>

#include <set>
#include <string_view>

#include "cpu_adam/adam.hpp"
#include "cpu_adam/state_format.hpp"
#include "runtime/base/error.hpp"

namespace spillway::engine {
namespace {

/// A block is complete, and its norm begins, when the gradients of all that lies in it are there.
constexpr std::uint64_t kBlockParameters = 8u << 20;
/// Staging buffers of tiles that live on disk: one is read, one updated and two written.
constexpr std::uint32_t kStagedTiles = 4;

void check_options(const EmbeddedOptions& options) {
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
    check(parameter.group < options.groups.size(), ErrorCode::invalid_argument,
          fmt::format("parameter \"{}\" is of group {}; there are {} groups, counted from 0", name,
                      parameter.group, options.groups.size()));
  }
}

}  // namespace

EmbeddedLayout make_layout(const EmbeddedOptions& options,
                           std::span<const EmbeddedParameter> parameters) {
  check_options(options);
  check_parameters(options, parameters);
  EmbeddedLayout layout;
  plan::Workload& workload = layout.workload;
  workload.external = true;
  workload.compute = options.dtype;
  // Gradients wait in fp32 where several are summed, as those of rounds do.
  workload.rounds = options.gradients_per_step == 1 ? 1 : 2;
  std::uint64_t end = 0;  // of the block under way
  for (const EmbeddedParameter& parameter : parameters) {
    const bool opens = workload.blocks.empty() ||
                       layout.groups.back()[0].group != parameter.group ||
                       end + parameter.elements > kBlockParameters;
    if (opens) {
      workload.blocks.emplace_back().name = parameter.name;
      layout.groups.push_back(
          {{{.end = 0, .group = parameter.group}, {.end = 0, .group = parameter.group}}});
      layout.parameters.push_back(0);
      end = 0;
    }
    const auto block = static_cast<std::uint32_t>(workload.blocks.size() - 1);
    layout.places.push_back({.block = block, .first = end, .count = parameter.elements});
    ++layout.parameters.back();
    end = round_up(end + parameter.elements, cpu_adam::kQuantizationBlock);
    plan::BlockShape& shape = workload.blocks.back();
    shape.parameters = ElementCount{end};
    shape.padded_parameters = ElementCount{round_up(end, kLeafParameters)};
    for (GroupPart& part : layout.groups.back()) part.end = shape.padded_parameters.value();
  }
  return layout;
}

plan::Placement embedded_placement(const EmbeddedOptions& options, const plan::Workload& workload) {
  const plan::Tier state = options.nvme.empty() ? plan::Tier::host : plan::Tier::nvme;
  plan::Placement placement;
  placement.blocks.assign(
      workload.blocks.size(),
      {.parameters = plan::Tier::host, .gradients = plan::Tier::host, .state = state});
  placement.format = options.state_format;
  placement.tile_parameters = ElementCount{options.tile_parameters};
  // Where all state lies in memory, one carries tiles to and from checkpoints.
  placement.state_slots = state == plan::Tier::nvme ? kStagedTiles : 1;
  return placement;
}

}  // namespace spillway::engine
