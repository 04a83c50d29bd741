#include "runtime/plan/orders.hpp"

namespace spillway::plan {

std::string_view name_of(Tier tier) {
  switch (tier) {
    case Tier::device: return "device";
    case Tier::host: return "host";
    case Tier::nvme: return "nvme";
  }
  return "unknown";
}

std::string_view name_of(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::naive: return "naive";
    case PipelineSchedule::f_then_b: return "f_then_b";
    case PipelineSchedule::one_f_one_b: return "1f1b";
    case PipelineSchedule::interleaved: return "interleaved";
    case PipelineSchedule::pipedream: return "pipedream";
    case PipelineSchedule::pipedream_2bw: return "pipedream_2bw";
  }
  return "unknown";
}

}  // namespace spillway::plan
