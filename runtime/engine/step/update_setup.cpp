#include "runtime/engine/step/update_setup.hpp"

#include "runtime/plan/placement/placement.hpp"

namespace spillway::engine {

std::vector<BlockGroups> decay_groups(const model::ModelLayout& layout,
                                      const plan::Workload& workload, config::DecayScope scope) {
  std::vector<BlockGroups> groups;
  for (const model::BlockLayout& block : layout.blocks) {
    BlockGroups& parts = groups.emplace_back();
    std::size_t last = 0;
    parts[0].group = kDecayed;
    for (const model::ParameterTensor& tensor : block.tensors) {
      const bool plain = tensor.is_vector && scope != config::DecayScope::all;
      const std::uint32_t group = plain ? kPlain : kDecayed;
      if (group != parts[last].group) parts.at(++last).group = group;
      parts[last].end = (tensor.first + tensor.count).value();
    }
    // Many ranks have longer padding than the layout.
    parts[last].end = workload.blocks[groups.size() - 1].padded_parameters.value();
  }
  return groups;
}

const cpu_adam::Kernel& update_kernel(const config::TrainOptions& options,
                                      const plan::Workload& workload) {
  return cpu_adam::find_kernel(cpu_adam::isa_or_best(options.isa),
                               plan::waiting_gradient_dtype(workload), workload.compute,
                               options.state_format);
}

}  // namespace spillway::engine
