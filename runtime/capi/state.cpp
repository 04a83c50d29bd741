// What lies between steps: hyperparameters, state, checkpoints, counters.
#include <fmt/format.h>

#include <span>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/capi/detail/groups.hpp"
#include "runtime/capi/detail/session.hpp"
#include "runtime/capi/detail/status.hpp"
#include "runtime/capi/detail/structures.hpp"
#include "runtime/capi/spillway.h"

namespace spillway::capi {
namespace {

void check_group(const Session& session, std::uint32_t group) {
  check(group < session.groups.size(), ErrorCode::invalid_argument,
        fmt::format("there is no group {}: {} were added, and the first is 0", group,
                    session.groups.size()));
}

void check_elements(const Registered& parameter, std::uint64_t elements) {
  check(elements == parameter.elements, ErrorCode::invalid_argument,
        fmt::format("the arrays for the state of \"{}\" have {} elements and the parameter {}: "
                    "give arrays of its size",
                    parameter.name, elements, parameter.elements));
}

template <class Float>
std::span<Float> array(Float* data, std::uint64_t elements) {
  return {data, data == nullptr ? 0 : static_cast<std::size_t>(elements)};
}

const char* check_path(const char* path, std::string_view what) {
  check(path != nullptr && *path != '\0', ErrorCode::invalid_argument,
        fmt::format("the {} is empty: give its path", what));
  return path;
}

}  // namespace
}  // namespace spillway::capi

namespace capi = spillway::capi;

spillway_status spillway_get_group(spillway_trainer* trainer, uint32_t group,
                                   spillway_group* values) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    capi::check_group(*use, group);
    capi::write_structure(
        values, capi::group_of(use->started() ? use->trainer().group(group) : use->groups[group]),
        "the spillway_group");
  });
}

spillway_status spillway_set_group(spillway_trainer* trainer, uint32_t group,
                                   const spillway_group* values) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    capi::check_group(*use, group);
    const spillway::cpu_adam::AdamOptions options = capi::read_group(values);
    if (use->started()) {
      use->trainer().set_group(group, options);
    } else {
      use->groups[group] = options;
    }
  });
}

spillway_status spillway_get_steps(spillway_trainer* trainer, uint64_t* steps, uint64_t* updates) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    const spillway::engine::EmbeddedTrainer& engine = use->trainer();
    if (steps != nullptr) *steps = engine.steps();
    if (updates != nullptr) *updates = engine.updates();
  });
}

spillway_status spillway_set_updates(spillway_trainer* trainer, uint64_t updates) {
  return capi::guarded([&] { capi::SoleUse(trainer)->trainer().set_updates(updates); });
}

spillway_status spillway_read_state(spillway_trainer* trainer, uint32_t parameter,
                                    uint64_t elements, float* master, float* m, float* v) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    capi::check_elements(use->parameter(parameter), elements);
    use->trainer().read_state(parameter, capi::array(master, elements), capi::array(m, elements),
                              capi::array(v, elements));
  });
}

spillway_status spillway_write_state(spillway_trainer* trainer, uint32_t parameter,
                                     uint64_t elements, const float* master, const float* m,
                                     const float* v) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    capi::check_elements(use->parameter(parameter), elements);
    spillway::check(master != nullptr, spillway::ErrorCode::invalid_argument,
                    "the array of master weights is null: give it");
    use->trainer().write_state(parameter, capi::array(master, elements), capi::array(m, elements),
                               capi::array(v, elements));
  });
}

spillway_status spillway_save(spillway_trainer* trainer, const char* directory) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    use->trainer().save(capi::check_path(directory, "directory"));
  });
}

spillway_status spillway_load(spillway_trainer* trainer, const char* directory) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    use->trainer().load(capi::check_path(directory, "directory"));
  });
}

spillway_status spillway_get_memory(spillway_trainer* trainer, uint32_t row,
                                    spillway_memory_row* values) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    static_cast<void>(use->trainer());
    spillway_memory_row result = SPILLWAY_MEMORY_ROW_INIT;
    const std::vector<spillway::plan::MemoryItem>& items = use->memory;
    if (row < items.size()) {
      result.tier = spillway::plan::name_of(items[row].tier).data();
      result.what = items[row].what.c_str();
      result.bytes = items[row].bytes.value();
    }
    capi::write_structure(values, result, "the spillway_memory_row");
  });
}

spillway_status spillway_get_lane(spillway_trainer* trainer, uint32_t row,
                                  spillway_lane_row* values) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    const spillway::engine::EmbeddedUse used = use->trainer().use();
    spillway_lane_row result = SPILLWAY_LANE_ROW_INIT;
    if (row < used.busy_seconds.size()) {
      const auto lane = static_cast<spillway::plan::Lane>(row);
      result.lane = spillway::plan::name_of(lane).data();
      result.seconds = used.busy_seconds[row];
      if (lane == spillway::plan::Lane::h2d) result.bytes = used.uploaded.value();
      if (lane == spillway::plan::Lane::d2h) result.bytes = used.downloaded.value();
      if (lane == spillway::plan::Lane::nvme_read) result.bytes = used.read.value();
      if (lane == spillway::plan::Lane::nvme_write) result.bytes = used.written.value();
    }
    capi::write_structure(values, result, "the spillway_lane_row");
  });
}

spillway_status spillway_write_trace(spillway_trainer* trainer, const char* path) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    use->trainer().write_trace(capi::check_path(path, "file"));
  });
}
