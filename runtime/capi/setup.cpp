// Versions, and a trainer before its first step: groups, parameters, start, end.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "runtime/base/error.hpp"
#include "runtime/capi/detail/groups.hpp"
#include "runtime/capi/detail/session.hpp"
#include "runtime/capi/detail/status.hpp"
#include "runtime/capi/detail/structures.hpp"
#include "runtime/capi/spillway.h"

namespace spillway::capi {
namespace {

/// Returns the choice of that number. `choices`: what the numbers from 0 on mean.
template <class Choice, std::size_t kCount>
Choice choose(std::int32_t number, const std::array<Choice, kCount>& choices,
              std::string_view member) {
  check(number >= 0 && static_cast<std::size_t>(number) < kCount, ErrorCode::invalid_argument,
        fmt::format("{} is {}: there are 0 to {}", member, number, kCount - 1));
  return choices[static_cast<std::size_t>(number)];
}

bool read_switch(std::int32_t number, std::string_view member) {
  return choose(number, std::array{false, true}, member);
}

std::vector<std::filesystem::path> read_paths(const spillway_options& given) {
  check(given.nvme_count == 0 || given.nvme != nullptr, ErrorCode::invalid_argument,
        fmt::format("nvme_count is {} and nvme a null pointer: give as many directories",
                    given.nvme_count));
  std::vector<std::filesystem::path> paths;
  for (std::uint32_t i = 0; i < given.nvme_count; ++i) {
    check(given.nvme[i] != nullptr && *given.nvme[i] != '\0', ErrorCode::invalid_argument,
          fmt::format("nvme[{}] is empty: give the directory", i));
    paths.emplace_back(given.nvme[i]);
    check(std::filesystem::is_directory(paths.back()), ErrorCode::invalid_argument,
          fmt::format("nvme[{}]: {} is not a directory; mount its drive or make it", i,
                      paths.back().string()));
  }
  return paths;
}

engine::EmbeddedOptions read_options(const spillway_options& given) {
  engine::EmbeddedOptions options;
  options.state_format = choose(
      given.state_format,
      std::array{StateFormat::fp32, StateFormat::split, StateFormat::bf16, StateFormat::int8},
      "state_format");
  options.gradients_per_step = given.gradients_per_step;
  options.defers_updates = read_switch(given.defers_updates, "defers_updates");
  if (read_switch(given.zeros_for_missing, "zeros_for_missing")) {
    options.missing_gradient = engine::MissingGradient::zero;
  }
  options.isa = choose(given.isa,
                       std::array<std::optional<cpu_adam::Isa>, 5>{
                           std::nullopt, cpu_adam::Isa::scalar, cpu_adam::Isa::portable,
                           cpu_adam::Isa::avx2, cpu_adam::Isa::avx512},
                       "isa");
  options.threads = given.threads;
  options.nvme = read_paths(given);
  if (given.host_memory != 0) options.host_memory = Bytes{given.host_memory};
  if (given.tile_parameters != 0) options.tile_parameters = given.tile_parameters;
  options.seed = given.seed;
  options.traces = read_switch(given.traces, "traces");
  check(given.device == 0 || given.device == SPILLWAY_CPU || given.device == SPILLWAY_CUDA,
        ErrorCode::invalid_argument,
        fmt::format("device is {}: there are SPILLWAY_CPU ({}) and SPILLWAY_CUDA ({})",
                    given.device, int{SPILLWAY_CPU}, int{SPILLWAY_CUDA}));
  if (given.device == SPILLWAY_CUDA) options.device = config::DeviceKind::cuda;
  options.device_index = given.device_index;
  if (given.device_memory != 0) options.device_memory = Bytes{given.device_memory};
  if (given.gradient_memory != 0) options.gradient_memory = Bytes{given.gradient_memory};
  return options;
}

void add_parameter(Session& session, const char* name, std::uint32_t group, const Tensor& values) {
  const auto same = [&](const Registered& other) { return other.name == name; };
  check(std::ranges::none_of(session.parameters, same), ErrorCode::invalid_argument,
        fmt::format("there is a parameter \"{}\" already: give each a name of its own", name));
  check(group < session.groups.size(), ErrorCode::invalid_argument,
        fmt::format("parameter \"{}\" is of group {}, and {} were added: add the group first", name,
                    group, session.groups.size()));
  if (session.parameters.empty()) session.dtype = values.dtype;
  check(values.dtype == session.dtype, ErrorCode::invalid_argument,
        fmt::format("parameter \"{}\" is {} and those before it are {}: a trainer has one dtype; "
                    "make one for each",
                    name, name_of(values.dtype), name_of(session.dtype)));
  Registered& added = session.parameters.emplace_back();
  added.name = name;
  added.group = group;
  added.shape.assign(values.shape.begin(), values.shape.end());
  added.elements = values.elements;
  added.start_values = values.bytes.data();
}

}  // namespace
}  // namespace spillway::capi

using spillway::check;
using spillway::ErrorCode;
namespace capi = spillway::capi;

uint32_t spillway_abi_version() { return SPILLWAY_ABI_VERSION; }
const char* spillway_version() { return SPILLWAY_VERSION; }

spillway_status spillway_create(spillway_trainer** trainer) {
  return capi::guarded([&] {
    check(trainer != nullptr, ErrorCode::invalid_argument,
          "the address for the trainer is a null pointer: pass that of a spillway_trainer*");
    *trainer = nullptr;
    *trainer = capi::open_session();
  });
}

spillway_status spillway_destroy(spillway_trainer* trainer) {
  return capi::guarded([&] {
    if (trainer != nullptr) capi::close_session(trainer);
  });
}

spillway_status spillway_add_group(spillway_trainer* trainer, const spillway_group* group,
                                   uint32_t* index) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    use->check_not_started();
    use->groups.push_back(capi::read_group(group));
    if (index != nullptr) *index = static_cast<std::uint32_t>(use->groups.size() - 1);
  });
}

spillway_status spillway_add_parameter(spillway_trainer* trainer, const char* name, uint32_t group,
                                       const spillway_tensor* values, uint32_t* index) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    use->check_not_started();
    check(name != nullptr && *name != '\0', ErrorCode::invalid_argument,
          "the parameter has no name: give it one, which messages and checkpoints use");
    const std::string what = fmt::format("parameter \"{}\"", name);
    const capi::Tensor tensor = capi::read_tensor(values, what);
    capi::check_on_host(tensor, what);
    capi::add_parameter(*use, name, group, tensor);
    if (index != nullptr) *index = static_cast<std::uint32_t>(use->parameters.size() - 1);
  });
}

spillway_status spillway_start(spillway_trainer* trainer, const spillway_options* options) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    const spillway_options defaults = SPILLWAY_OPTIONS_INIT;
    use->start(capi::read_options(
        capi::read_structure(options == nullptr ? &defaults : options, "the spillway_options")));
  });
}
