#include "cpu_adam/cuda/detail/update_jobs.hpp"

#include <fmt/format.h>

#include "runtime/base/error.hpp"

namespace spillway::cpu_adam::cuda::detail {
namespace {

void check_aligned(std::string_view name, const void* address, std::size_t size) {
  if (reinterpret_cast<std::uintptr_t>(address) % size == 0) [[likely]]
    return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} of an update on the device lie at {}, which is no multiple of their "
                          "{} bytes; align every array to its element",
                          name, address, size));
}

}  // namespace

void check_update(const RangeTypes& types, const UpdateRange& range) {
  if (needs_parameters(types.format) && types.parameter != DType::bf16) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("state format {} needs bf16 parameters, not {}; use format fp32",
                            name_of(types.format), name_of(types.parameter)));
  }
  if (types.format == StateFormat::int8) {
    SPILLWAY_ASSERT(range.count == 0 || range.index % kQuantizationBlock == 0);
  }
  const std::size_t master = master_size(types.format);
  const std::size_t moment = moment_size(types.format);
  check_aligned("gradients", range.gradient, size_of(types.gradient));
  for (const void* address : {range.master_in, static_cast<const void*>(range.master_out)}) {
    check_aligned("masters", address, master);
  }
  for (const void* address : {range.m_in, range.v_in, static_cast<const void*>(range.m_out),
                              static_cast<const void*>(range.v_out)}) {
    check_aligned("moments", address, moment);
  }
  check_aligned("scales", range.scales_in, sizeof(float));
  check_aligned("scales", range.scales_out, sizeof(float));
  check_aligned("parameters", range.parameters_in, size_of(types.parameter));
  check_aligned("parameters", range.parameters_out, size_of(types.parameter));
}

UpdateJob make_job(const RangeTypes& types, const UpdateScalars& scalars, const UpdateRange& part) {
  const std::size_t master = master_size(types.format);
  const std::size_t m = uses_m(scalars.optimizer) ? moment_size(types.format) : 0;
  const std::size_t v = uses_v(scalars.optimizer) ? moment_size(types.format) : 0;
  const std::size_t parameter = size_of(types.parameter);
  // State that is neither read nor written may lie anywhere.
  const auto used = [](const void* address, std::size_t size) {
    return Array{size != 0 ? address : nullptr, size};
  };
  UpdateJob job{
      .scalars = scalars, .key = {}, .range = part, .parameter = types.parameter, .cut = {}};
  job.cut = make_cut(part.count,
                     {{part.gradient, size_of(types.gradient)},
                      {part.master_in, master},
                      {part.master_out, master},
                      used(part.m_in, m),
                      used(part.m_out, m),
                      used(part.v_in, v),
                      used(part.v_out, v),
                      used(part.parameters_in, needs_parameters(types.format) ? parameter : 0),
                      {part.parameters_out, parameter}});
  if (types.format == StateFormat::bf16) {
    job.key = rounding_key(scalars.rounding_seed, scalars.t, part.block,
                           static_cast<std::uint32_t>(part.index >> 32));
  }
  return job;
}

QuantizedJob make_quantized_job(const RangeTypes& types, std::span<const ParameterGroup> groups,
                                const UpdateRange& range) {
  QuantizedJob job{.range = range, .groups = {}, .group_count = 0, .aligned = false};
  const std::uint64_t end = range.index + range.count;
  std::uint64_t covered = range.index;
  for (const ParameterGroup& group : groups) {
    if (covered >= end) break;
    if (group.end <= covered) continue;
    check(job.group_count < kMaxQuantizedGroups, ErrorCode::invalid_argument,
          "a range of format int8 has more parameter groups than one update on the device takes; "
          "update it in parts");
    job.groups[job.group_count++] = group;
    covered = group.end;
  }
  SPILLWAY_ASSERT(covered >= end && "parameters that belong to no group");
  const std::size_t master = master_size(types.format);
  job.aligned = vectors_start_at(0, {{range.gradient, size_of(types.gradient)},
                                     {range.master_in, master},
                                     {range.master_out, master},
                                     {range.m_in, 1},
                                     {range.m_out, 1},
                                     {range.v_in, 1},
                                     {range.v_out, 1},
                                     {range.parameters_in, 2},
                                     {range.parameters_out, 2}});
  return job;
}

}  // namespace spillway::cpu_adam::cuda::detail
