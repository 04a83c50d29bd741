#include "runtime/plan/step/op_traffic.hpp"

#include "runtime/plan/reduction.hpp"

namespace spillway::plan {
namespace {

/// Bytes a parameter of the array that rounds are summed in: the first round only writes it.
std::uint64_t summed_width(DType dtype, std::uint32_t round) {
  return (round == 0 ? 1 : 2) * size_of(dtype);
}

/// Bytes a parameter of momentum and variance, with their scales.
double moments_width(StateFormat format) {
  const Bytes moment = moment_bytes(format, ElementCount{kLeafParameters});
  return 2 * static_cast<double>(moment.value()) / static_cast<double>(kLeafParameters);
}

}  // namespace

double update_traffic_per_parameter(StateFormat format, DType compute) {
  const auto width = static_cast<double>(size_of(compute));
  // The fp32 master is read and written whole and the narrow copy only written. In the other
  // formats the narrow copy is the upper half of the master, so it is read as well.
  const bool whole = format == StateFormat::fp32;
  const double parameter = whole ? width : 2 * width;
  return width + parameter + 2 * ((whole ? 4 : 2) + moments_width(format));
}

Bytes update_traffic(const Workload& workload, const Placement& placement, const Tile& tile) {
  // The formula is of gradients in the compute dtype; sums of rounds are wider.
  const double widening = static_cast<double>(size_of(waiting_gradient_dtype(workload))) -
                          static_cast<double>(size_of(workload.compute));
  const double each = update_traffic_per_parameter(placement.format, workload.compute) + widening;
  // State on its way from and to the disk is summed while the pass has it in the cache.
  return Bytes{static_cast<std::uint64_t>(each * static_cast<double>(tile.count.value()))};
}

Bytes rounding_traffic(const Workload& workload, const Placement& placement, std::uint32_t block,
                       std::uint32_t round) {
  const std::uint64_t parameters = workload.blocks[block].padded_parameters.value();
  const std::uint64_t narrow = size_of(workload.compute);
  std::uint64_t bytes = 0;
  if (workload.tied_blocks().contains(block)) {
    bytes += workload.tied_elements_of(block).value() * 3 * size_of(DType::fp32);
  }
  if (workload.compute != DType::fp32) bytes += parameters * (size_of(DType::fp32) + narrow);
  if (placement.blocks[block].gradients == Tier::device) {
    bytes += parameters * (narrow + summed_width(waiting_gradient_dtype(workload), round));
  }
  return Bytes{bytes};
}

Bytes summing_traffic(const Workload& workload, std::uint32_t block, std::uint32_t round) {
  const std::uint64_t first = summed_width(DType::fp32, round);
  const std::uint64_t later = (workload.gradients_of_round() - 1) * summed_width(DType::fp32, 1);
  const std::uint64_t read = workload.gradients_of_round() * size_of(workload.compute);
  return Bytes{workload.shard_elements(block).value() * (read + first + later)};
}

Bytes node_gather_traffic(const Workload& workload, std::uint32_t block) {
  const std::uint64_t others = workload.replicas.secondary - 1;
  return Bytes{workload.secondary_elements(block).value() * others * size_of(workload.compute)};
}

Bytes gather_traffic(const Workload& workload, std::uint32_t block) {
  const std::uint64_t sent = workload.shard_elements(block).value() * (workload.replicas.count - 1);
  return Bytes{sent * size_of(workload.compute)};
}

Bytes reduction_traffic(const Workload& workload, std::uint32_t block) {
  // Where nothing is sharded, a sum is a reduce_scatter and an all_gather of its parts.
  const Reduction reduction = reduction_of(workload, workload.blocks[block].padded_parameters);
  const Bytes sent = gather_traffic(workload, block);
  return reduction.in_place() ? sent / workload.replicas.count * 2U : sent;
}

Bytes tensor_sum_traffic(const TensorGroup& group, std::uint32_t tensor_index, Bytes bytes,
                         DType dtype) {
  const std::uint64_t elements = bytes.value() / size_of(dtype);
  const std::uint64_t ranks = group.count;
  const std::uint64_t index = tensor_index;
  const std::uint64_t own = elements * (index + 1) / ranks - elements * index / ranks;
  return Bytes{(elements - own + own * (ranks - 1)) * size_of(dtype)};
}

Bytes token_gather_traffic(const Workload& workload) {
  return workload.boundary_bytes * std::uint64_t{workload.tensor.count - 1};
}

Bytes pass_sum_traffic(const Workload& workload, std::uint32_t tensor_index) {
  if (workload.tensor.sequence) return token_gather_traffic(workload);
  return tensor_sum_traffic(workload.tensor, tensor_index, workload.summed_bytes, workload.compute);
}

Bytes norm_traffic(const Workload& workload, const Tile& tile) {
  return Bytes{tile.count.value() * size_of(waiting_gradient_dtype(workload))};
}

}  // namespace spillway::plan
