#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/engine/embedded_forecast.hpp"
#include "tools/bench/machine_description.hpp"
#include "tools/bench/named_machines.hpp"
#include "tools/python/bindings/bindings.hpp"

namespace spillway::python {
namespace {

namespace nb = nanobind;
using engine::EmbeddedForecast;
using engine::EmbeddedOptions;
using plan::MachineProfile;

/// A name, a group, a number of elements and a unit.
using SizedParameter =
    std::tuple<std::string, std::uint32_t, std::uint64_t, std::optional<std::uint32_t>>;
/// A name, a number of bytes and a unit.
using SizedTensor = std::tuple<std::string, std::uint64_t, std::optional<std::uint32_t>>;
/// A tier, what is there, and its bytes.
using MemoryLine = std::tuple<std::string, std::string, std::uint64_t>;

void make(EmbeddedForecast* self, const EmbeddedOptions& options,
          const std::vector<SizedParameter>& parameters, const std::vector<SizedTensor>& frozen) {
  std::vector<engine::EmbeddedParameter> registered;
  for (const auto& [name, group, elements, unit] : parameters) {
    registered.push_back({.name = name, .elements = elements, .group = group, .unit = unit});
  }
  std::vector<engine::FrozenTensor> never_updated;
  never_updated.reserve(frozen.size());
  for (const auto& [name, bytes, unit] : frozen) {
    never_updated.push_back({.name = name, .bytes = Bytes{bytes}, .unit = unit});
  }
  new (self) EmbeddedForecast(options, registered, never_updated);
}

std::vector<MemoryLine> memory(const EmbeddedForecast& self) {
  std::vector<MemoryLine> lines;
  for (const plan::MemoryItem& item : self.memory()) {
    lines.emplace_back(plan::name_of(item.tier), item.what, item.bytes.value());
  }
  return lines;
}

/// Adds the bytes of one sort that a step moves.
void add_traffic(nb::class_<EmbeddedForecast>& forecast, const char* name,
                 Bytes engine::EmbeddedTraffic::*bytes) {
  forecast.def_prop_ro(
      name, [bytes](const EmbeddedForecast& self) { return (self.traffic().*bytes).value(); });
}

}  // namespace

void add_forecast(nb::module_& module) {
  nb::class_<MachineProfile>(module, "Rates", "Bytes a second of a machine; 0: not known.")
      .def_ro("to_device", &MachineProfile::h2d);
  nb::class_<bench::MachineDescription>(module, "Machine", "A machine that is not here.")
      .def_ro("name", &bench::MachineDescription::name)
      .def_ro("rates", &bench::MachineDescription::lanes)
      .def_prop_ro("host",
                   [](const bench::MachineDescription& self) { return self.capacity.host.value(); })
      .def_prop_ro(
          "device",
          [](const bench::MachineDescription& self) { return self.capacity.device.value(); })
      .def_prop_ro(
          "disk", [](const bench::MachineDescription& self) { return self.capacity.nvme.value(); });
  module.def(
      "machine_of", [](const std::string& file) { return bench::machine_from(file); },
      nb::arg("file"), "Returns the machine of that name, or the one that a JSON file describes.");
  nb::class_<EmbeddedForecast> forecast(module, "Forecast",
                                        "What a Trainer of these sizes would take and move.");
  forecast.def("__init__", &make, nb::arg("options"), nb::arg("parameters"), nb::arg("frozen"))
      .def_prop_ro("memory", &memory)
      .def(
          "refusal",
          [](const EmbeddedForecast& self, std::uint64_t beside) {
            return self.refusal(Bytes{beside});
          },
          nb::arg("beside"))
      .def("measure", &EmbeddedForecast::measure, nb::call_guard<nb::gil_scoped_release>())
      .def("step_seconds", &EmbeddedForecast::step_seconds, nb::arg("rates"),
           nb::arg("pass_seconds"), nb::call_guard<nb::gil_scoped_release>());
  add_traffic(forecast, "to_device", &engine::EmbeddedTraffic::to_device);
  add_traffic(forecast, "from_device", &engine::EmbeddedTraffic::from_device);
  add_traffic(forecast, "disk_read", &engine::EmbeddedTraffic::read);
  add_traffic(forecast, "disk_written", &engine::EmbeddedTraffic::written);
  add_traffic(forecast, "update_traffic", &engine::EmbeddedTraffic::update);
}

}  // namespace spillway::python
