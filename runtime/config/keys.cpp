#include "runtime/config/keys.hpp"

#include <algorithm>
#include <array>

namespace spillway::config {
namespace {

constexpr std::array<Named<DType>, 3> kDTypes{{
    {"fp32", DType::fp32},
    {"bf16", DType::bf16},
    {"fp16", DType::fp16},
}};
constexpr std::array<Named<StateFormat>, 4> kStateFormats{{
    {"fp32", StateFormat::fp32},
    {"split", StateFormat::split},
    {"bf16", StateFormat::bf16},
    {"int8", StateFormat::int8},
}};
constexpr std::array<Named<data::Order>, 2> kOrders{{
    {"shuffled", data::Order::shuffled},
    {"sequential", data::Order::sequential},
}};
constexpr std::array<Named<cpu_adam::Isa>, 4> kIsas{{
    {"scalar", cpu_adam::Isa::scalar},
    {"portable", cpu_adam::Isa::portable},
    {"avx2", cpu_adam::Isa::avx2},
    {"avx512", cpu_adam::Isa::avx512},
}};
constexpr std::array<Named<nvme_swap::EngineKind>, 4> kEngines{{
    {"auto", nvme_swap::EngineKind::automatic},
    {"uring", nvme_swap::EngineKind::uring},
    {"aio", nvme_swap::EngineKind::aio},
    {"posix", nvme_swap::EngineKind::posix},
}};
constexpr std::array<Named<ScheduleKind>, 9> kSchedules{{
    {"Constant", ScheduleKind::constant},
    {"Linear", ScheduleKind::linear},
    {"Cosine", ScheduleKind::cosine},
    {"WSD", ScheduleKind::wsd},
    {"WarmupLR", ScheduleKind::warmup_lr},
    {"WarmupDecayLR", ScheduleKind::warmup_decay_lr},
    {"WarmupCosineLR", ScheduleKind::warmup_cosine_lr},
    {"OneCycle", ScheduleKind::one_cycle},
    {"LRRangeTest", ScheduleKind::lr_range_test},
}};
constexpr std::array<Named<UpdateMode>, 4> kUpdateModes{{
    {"auto", UpdateMode::automatic},
    {"deferred", UpdateMode::deferred},
    {"speculative", UpdateMode::speculative},
    {"delayed", UpdateMode::delayed},
}};
constexpr std::array<Named<PipelineSchedule>, 6> kPipelineSchedules{{
    {"naive", PipelineSchedule::naive},
    {"f_then_b", PipelineSchedule::f_then_b},
    {"1f1b", PipelineSchedule::one_f_one_b},
    {"interleaved", PipelineSchedule::interleaved},
    {"pipedream", PipelineSchedule::pipedream},
    {"pipedream_2bw", PipelineSchedule::pipedream_2bw},
}};
constexpr std::array<Named<SumOrder>, 2> kSumOrders{{
    {"fast", SumOrder::fast},
    {"fixed", SumOrder::fixed},
}};
constexpr std::array<Named<WorkOrder>, 2> kWorkOrders{{
    {"layer_major", WorkOrder::layer_major},
    {"micro_batch_major", WorkOrder::micro_batch_major},
}};
constexpr std::array<Named<DecayScope>, 2> kDecayScopes{{
    {"matrices", DecayScope::matrices},
    {"all", DecayScope::all},
}};
constexpr std::array<Named<AttentionChoice>, 2> kAttentions{{
    {"auto", AttentionChoice::automatic},
    {"own", AttentionChoice::own},
}};
constexpr std::array<Named<Checkpointing>, 5> kCheckpointings{{
    {"auto", Checkpointing::automatic},
    {"recompute", Checkpointing::recompute},
    {"keep", Checkpointing::keep},
    {"offload", Checkpointing::offload},
    {"nvme", Checkpointing::nvme},
}};
constexpr std::array<Named<DeviceKind>, 2> kDevices{{
    {"host", DeviceKind::host},
    {"cuda", DeviceKind::cuda},
}};
constexpr std::array<Named<Residency>, 3> kResidencies{{
    {"auto", Residency::automatic},
    {"none", Residency::none},
    {"all", Residency::all},
}};
constexpr std::array<Named<StateHome>, 4> kStateHomes{{
    {"auto", StateHome::automatic},
    {"device", StateHome::device},
    {"host", StateHome::host},
    {"nvme", StateHome::nvme},
}};
constexpr std::array<Named<SumsHome>, 3> kSumsHomes{{
    {"auto", SumsHome::automatic},
    {"device", SumsHome::device},
    {"host", SumsHome::host},
}};

}  // namespace

template <>
std::span<const Named<DType>> names_of<DType>() {
  return kDTypes;
}
template <>
std::span<const Named<StateFormat>> names_of<StateFormat>() {
  return kStateFormats;
}
template <>
std::span<const Named<data::Order>> names_of<data::Order>() {
  return kOrders;
}
template <>
std::span<const Named<cpu_adam::Isa>> names_of<cpu_adam::Isa>() {
  return kIsas;
}
template <>
std::span<const Named<nvme_swap::EngineKind>> names_of<nvme_swap::EngineKind>() {
  return kEngines;
}
template <>
std::span<const Named<ScheduleKind>> names_of<ScheduleKind>() {
  return kSchedules;
}
template <>
std::span<const Named<UpdateMode>> names_of<UpdateMode>() {
  return kUpdateModes;
}
template <>
std::span<const Named<PipelineSchedule>> names_of<PipelineSchedule>() {
  return kPipelineSchedules;
}
template <>
std::span<const Named<SumOrder>> names_of<SumOrder>() {
  return kSumOrders;
}
template <>
std::span<const Named<WorkOrder>> names_of<WorkOrder>() {
  return kWorkOrders;
}
template <>
std::span<const Named<DecayScope>> names_of<DecayScope>() {
  return kDecayScopes;
}
template <>
std::span<const Named<AttentionChoice>> names_of<AttentionChoice>() {
  return kAttentions;
}
template <>
std::span<const Named<Checkpointing>> names_of<Checkpointing>() {
  return kCheckpointings;
}
template <>
std::span<const Named<Residency>> names_of<Residency>() {
  return kResidencies;
}
template <>
std::span<const Named<StateHome>> names_of<StateHome>() {
  return kStateHomes;
}
template <>
std::span<const Named<SumsHome>> names_of<SumsHome>() {
  return kSumsHomes;
}
template <>
std::span<const Named<DeviceKind>> names_of<DeviceKind>() {
  return kDevices;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);  // the row of i - 2
  std::vector<std::size_t> last(b.size() + 1);    // the row of i - 1
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replace});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace spillway::config
