#include <algorithm>
#include <array>

#include "runtime/config/detail/option_builders.hpp"

namespace spillway::config::detail {
namespace {

constexpr double kMostStages = 1U << 14;

using nlohmann::json;

/// DeepSpeed's names of a tier.
struct Device {
  std::string_view name;
  StateHome home;
};
constexpr std::array kDevices{Device{"none", StateHome::device}, Device{"cpu", StateHome::host},
                              Device{"nvme", StateHome::nvme}};

Domain devices() {
  Domain domain{.kind = Kind::name};
  for (const Device& device : kDevices) domain.names.push_back(device.name);
  return domain;
}

void read_cpu_offload(ConfigFile& file, const Option& self, TrainOptions& options) {
  const json* const offload = file.value(self, options);
  if (offload == nullptr || *offload == false) return;
  file.note(self.path(), "old name of offload_optimizer.device cpu");
  options.state_home = StateHome::host;
}

void read_optimizer_device(ConfigFile& file, const Option& self, TrainOptions& options) {
  const json* const device = file.value(self, options);
  if (device == nullptr) return;
  options.state_home =
      std::ranges::find(kDevices, device->get<std::string_view>(), &Device::name)->home;
}

void read_optimizer_path(ConfigFile& file, const Option& self, TrainOptions& options) {
  const json* const path = file.value(self, options);
  if (path == nullptr) return;
  if (options.state_home == StateHome::nvme) {
    options.nvme = {path->get<std::string>()};
  } else {
    file.note(self.path(), "ignored: offload_optimizer.device is not nvme");
  }
}

/// Below stage 3 DeepSpeed ignores where parameters are to live; true where that has been noted.
bool ignores_parameters(ConfigFile& file, const std::string& path, const TrainOptions& options) {
  if (options.zero_stage >= 3) return false;
  file.note(path, "ignored below stage 3, as in DeepSpeed");
  return true;
}

void read_old_parameters(ConfigFile& file, const Option& self, TrainOptions& options) {
  const json* const offload = file.value(self, options);
  if (offload == nullptr || *offload == false) return;
  if (!ignores_parameters(file, self.path(), options)) options.residency = Residency::none;
}

void read_parameter_device(ConfigFile& file, const Option& self, TrainOptions& options) {
  const json* const device = file.value(self, options);
  const std::string section(self.section);
  if (!file.has(section) || ignores_parameters(file, section, options)) return;
  const bool on_disk = device != nullptr && *device == "nvme";
  if (on_disk || (device != nullptr && *device == "cpu")) options.residency = Residency::none;
  if (on_disk || file.has(section + ".nvme_path")) {
    file.note(section + (file.has(section + ".nvme_path") ? ".nvme_path" : ".device"),
              "16-bit parameters stream from host memory; what moves to disk is optimizer state");
  }
}

void read_cpu_checkpointing(ConfigFile& file, const Option& self, TrainOptions& options) {
  const json* const offload = file.value(self, options);
  if (offload != nullptr && *offload == true) options.activations = StateHome::host;
}

template <auto Monitor>
void add_monitor(std::vector<Option>& table, std::string_view section, std::string_view writes,
                 std::string_view folder) {
  Rows rows(table, {.section = section, .part = Part::free});
  rows.member<Monitor, &MonitorOptions::enabled>({"enabled", writes});
  rows.member<Monitor, &MonitorOptions::output_path>(
      {"output_path", "The files lie in a folder `job_name` of this directory.", folder});
  rows.member<Monitor, &MonitorOptions::job_name>({"job_name", "This is the name of the folder."});
}

void read_tensor_ranks(ConfigFile& file, const Option& self, TrainOptions& options) {
  read_member<&TrainOptions::tensor, &TensorOptions::ranks>(file, self, options);
  options.tensor.ranks = std::max(options.tensor.ranks, 1U);
}

}  // namespace

void add_pipeline(std::vector<Option>& table) {
  Rows(table, {.section = "pipeline", .part = Part::layout, .automatic = automatic::kDefault})
      .member<&TrainOptions::pipeline, &PipelineOptions::stages>(
          {"stages",
           "The layers are cut into so many stages, each on ranks of its own; every micro-batch is "
           "a "
           "round."},
          whole<std::uint32_t>(1, kMostStages));
  Rows(table,
       {.section = "tensor_parallel", .part = Part::mathematics, .automatic = automatic::kDefault})
      .member<&TrainOptions::tensor, &TensorOptions::ranks>(
          {"autotp_size",
           "So many ranks in a row share out the heads, the columns of the MLP and the vocabulary "
           "of every layer (Megatron-LM). 0 is as 1: none do."},
          whole<std::uint32_t>(0, kMostStages))
      .read = read_tensor_ranks;
}

void add_homes(std::vector<Option>& table) {
  add_pipeline(table);
  constexpr std::string_view kZero = "zero_optimization";
  Rows zero(table, {.section = kZero, .part = Part::free});
  zero.member<&TrainOptions::zero_stage>(
      {"stage", "This is the stage of ZeRO; below 3 `offload_param` is ignored."},
      whole<std::uint32_t>(0, 3));
  zero.member<&TrainOptions::secondary_ranks>(
      {"zero_hpz_partition_size",
       "In stage 3, so many ranks in a row, those of a machine, keep what they have gathered, one "
       "part each, and gather it from there when a step reads it again (ZeRO++). 1: none do."},
      whole<std::uint32_t>(1, 1U << 16));
  zero.own({"cpu_offload", "This is the old name of `offload_optimizer.device` `cpu`.", "false"},
           kFlag, read_cpu_offload);
  zero.own({"cpu_offload_param", "This is the old name of `offload_param.device` `cpu`.", "false"},
           kFlag, read_old_parameters);
  Rows optimizer(table, {.section = "zero_optimization.offload_optimizer", .part = Part::free});
  optimizer.own({"device",
                 "`none`, `cpu` and `nvme` say the same as `device`, `host` and `nvme` of "
                 "`spillway.state_home`.",
                 "none"},
                devices(), read_optimizer_device);
  optimizer.own({"nvme_path", "This is another way to write `spillway.nvme` with one directory.",
                 "`RUN/state`"},
                {.kind = Kind::path}, read_optimizer_path);
  Rows parameters(table, {.section = "zero_optimization.offload_param", .part = Part::free});
  parameters.own(
      {"device",
       "With `cpu` or `nvme` every block is streamed, as with `spillway.residency` `none`.",
       "none"},
      devices(), read_parameter_device);
  parameters.own({"nvme_path",
                  "This key has no effect, because 16-bit parameters stay in host memory.", "none"},
                 {.kind = Kind::path}, only_check);
  Rows(table, {.section = "activation_checkpointing", .part = Part::free})
      .own({"cpu_checkpointing", "True says the same as `spillway.activations` `host`.", "false"},
           kFlag, read_cpu_checkpointing);
  add_monitor<&TrainOptions::tensorboard>(
      table, "tensorboard", "The run writes event files for TensorBoard.", "`RUN/tensorboard`");
  add_monitor<&TrainOptions::csv_monitor>(
      table, "csv_monitor", "The run writes a CSV file for each scalar.", "`RUN/csv_monitor`");
}

}  // namespace spillway::config::detail
