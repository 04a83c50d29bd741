// Where the tensors of a Trainer are, and passes of units.
#include <cstddef>
#include <span>

#include "tools/python/bindings/trainer.hpp"

namespace spillway::python {
namespace {

namespace nb = nanobind;
using engine::EmbeddedOptions;
using engine::EmbeddedTrainer;

/// Returns memory of the trainer `self` as an array of bytes, without a copy, which lives as long
/// as somebody uses it. `keeper` keeps it.
nb::object array_of(const nb::handle_t<Trainer>& self, std::span<std::byte> bytes, bool on_gpu,
                    const nb::handle& keeper) {
  const EmbeddedOptions& options = nb::cast<Trainer&>(self).native().options();
  return nb::cast(nb::ndarray<nb::array_api, std::uint8_t, nb::ndim<1>>(
      bytes.data(), {bytes.size()}, keeper, {}, nb::dtype<std::uint8_t>(),
      on_gpu ? nb::device::cuda::value : nb::device::cpu::value,
      on_gpu ? options.device_index : 0));
}

bool is_on_gpu(const EmbeddedTrainer& native) {
  return native.options().device == config::DeviceKind::cuda;
}

/// Returns the parameter's values where they are kept.
nb::object values(const nb::handle_t<Trainer>& self, std::uint32_t parameter) {
  EmbeddedTrainer& native = nb::cast<Trainer&>(self).native();
  return array_of(self, native.values(parameter), native.keeps_on_gpu(parameter),
                  nb::cast<Trainer&>(self).keeper());
}

/// Returns those of an entered unit, on the device.
nb::object device_values(const nb::handle_t<Trainer>& self, std::uint32_t parameter) {
  EmbeddedTrainer& native = nb::cast<Trainer&>(self).native();
  return array_of(self, native.device_values(parameter), is_on_gpu(native),
                  nb::cast<Trainer&>(self).unit_keeper());
}

/// Returns a frozen tensor where it is kept: of no unit, on the device.
nb::object frozen_values(const nb::handle_t<Trainer>& self, std::uint32_t frozen) {
  EmbeddedTrainer& native = nb::cast<Trainer&>(self).native();
  return array_of(self, native.frozen_values(frozen), native.keeps_frozen_on_gpu(frozen),
                  nb::cast<Trainer&>(self).keeper());
}

/// Returns one of an entered unit, or of no unit, on the device.
nb::object device_frozen(const nb::handle_t<Trainer>& self, std::uint32_t frozen) {
  EmbeddedTrainer& native = nb::cast<Trainer&>(self).native();
  return array_of(self, native.device_frozen(frozen), is_on_gpu(native),
                  nb::cast<Trainer&>(self).unit_keeper());
}

/// A frozen tensor's number and its bytes.
using NewFrozen = std::tuple<std::uint32_t, Array>;

void write_frozen(const Trainer& trainer, const std::vector<NewFrozen>& values) {
  std::vector<engine::FrozenValues> spans;
  for (const auto& [number, array] : values) {
    spans.push_back({.frozen = number,
                     .values = {static_cast<const std::byte*>(array.data()), array.nbytes()}});
  }
  const Unlocked unlocked;
  trainer.native().write_frozen(spans);
}

}  // namespace

void add_values(nb::class_<Trainer>& trainer) {
  trainer
      .def("values", &values, nb::arg("parameter"),
           nb::sig("def values(self, parameter: int) -> object"))
      .def("device_values", &device_values, nb::arg("parameter"),
           nb::sig("def device_values(self, parameter: int) -> object"))
      .def("frozen_values", &frozen_values, nb::arg("frozen"),
           nb::sig("def frozen_values(self, frozen: int) -> object"))
      .def("write_frozen", &write_frozen, nb::arg("values"),
           nb::sig("def write_frozen(self, "
                   "values: collections.abc.Sequence[tuple[int, object]]) -> None"))
      .def("device_frozen", &device_frozen, nb::arg("frozen"),
           nb::sig("def device_frozen(self, frozen: int) -> object"))
      .def(
          "enter",
          [](const Trainer& self, std::uint32_t unit, bool backward) {
            unlocked<&EmbeddedTrainer::enter>(
                self, unit,
                backward ? engine::EmbeddedPass::backward : engine::EmbeddedPass::forward);
          },
          nb::arg("unit"), nb::arg("backward"))
      .def(
          "leave",
          [](const Trainer& self, std::uint32_t unit, const StreamNumber& stream) {
            unlocked<&EmbeddedTrainer::leave>(self, unit, work_of(stream));
          },
          nb::arg("unit"), nb::arg("stream") = nb::none())
      .def(
          "release_device",
          [](const Trainer& self, const StreamNumber& stream) {
            unlocked<&EmbeddedTrainer::release_device>(self, work_of(stream));
          },
          nb::arg("stream") = nb::none())
      .def("resume_device", &unlocked<&EmbeddedTrainer::resume_device>);
}

}  // namespace spillway::python
