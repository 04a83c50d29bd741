#include "tools/python/bindings/trainer.hpp"

#include <fmt/format.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <span>
#include <string_view>

#include "runtime/base/error.hpp"
#include "tools/python/bindings/bindings.hpp"

namespace spillway::python {

namespace nb = nanobind;
using engine::EmbeddedOptions;
using engine::EmbeddedTrainer;

Trainer::Trainer(const EmbeddedOptions& options, const std::vector<Parameter>& parameters,
                 const std::vector<Frozen>& frozen)
    : dtype_(options.dtype) {
  std::vector<engine::EmbeddedParameter> registered;
  for (const auto& [name, group, array, unit] : parameters) {
    const std::span<const std::byte> values = bytes_of(array, dtype_, array.size(), name);
    elements_.push_back(array.size());
    registered.push_back({.name = name,
                          .elements = array.size(),
                          .group = group,
                          .unit = unit,
                          .values = values.data()});
  }
  std::vector<engine::FrozenTensor> never_updated;
  never_updated.reserve(frozen.size());
  for (const auto& [name, bytes, unit] : frozen) {
    never_updated.push_back({.name = name, .bytes = Bytes{bytes}, .unit = unit});
  }
  const Unlocked unlocked;
  held_->trainer = std::make_unique<EmbeddedTrainer>(options, registered, never_updated);
}

Trainer::~Trainer() {
  const bool units_are_used = units_.use_count() > 1;
  if (held_->trainer == nullptr || (held_.use_count() == 1 && !units_are_used)) return;
  const nb::gil_scoped_release unlocked;
  engine::EndedMemory memory = held_->trainer->end();
  held_->memory = std::move(memory.values);
  if (units_are_used) units_->memory = std::move(memory.units);
  held_->trainer.reset();
}

std::uint64_t Trainer::elements(std::uint32_t parameter) const {
  static_cast<void>(held_->trainer->name(parameter));
  return elements_[parameter];
}

void Trainer::add_gradient(std::uint32_t parameter, const Array& gradient) const {
  const std::span<const std::byte> bytes = bytes_of(
      gradient, dtype_, elements(parameter), "the gradient of " + held_->trainer->name(parameter));
  const Unlocked unlocked;
  held_->trainer->add_gradient(parameter, bytes);
}

void Trainer::read_gradient(std::uint32_t parameter, const Wide& sum, bool last) const {
  const auto to = optional_span<float>(std::optional(sum), elements(parameter));
  const Unlocked unlocked;
  if (!last) return held_->trainer->read_gradient(parameter, to);
  held_->trainer->read_last_gradient(parameter, to);
}

void Trainer::write_gradient(std::uint32_t parameter, const ConstWide& sum) const {
  const auto from = optional_span<const float>(std::optional(sum), elements(parameter));
  const Unlocked unlocked;
  held_->trainer->write_gradient(parameter, from);
}

void Trainer::read_state(std::uint32_t parameter, const std::optional<Wide>& master,
                         const std::optional<Wide>& m, const std::optional<Wide>& v) const {
  const std::uint64_t count = elements(parameter);
  const auto to_master = optional_span<float>(master, count);
  const auto to_m = optional_span<float>(m, count);
  const auto to_v = optional_span<float>(v, count);
  const Unlocked unlocked;
  held_->trainer->read_state(parameter, to_master, to_m, to_v);
}

void Trainer::write_state(std::uint32_t parameter, const std::optional<ConstWide>& master,
                          const std::optional<ConstWide>& m,
                          const std::optional<ConstWide>& v) const {
  const std::uint64_t count = elements(parameter);
  const auto from_master = optional_span<const float>(master, count);
  const auto from_m = optional_span<const float>(m, count);
  const auto from_v = optional_span<const float>(v, count);
  const Unlocked unlocked;
  held_->trainer->write_state(parameter, from_master, from_m, from_v);
}

namespace {

std::vector<double> leaf_sums(const Trainer& trainer) {
  const std::span<const double> sums = unlocked<&EmbeddedTrainer::leaf_sums>(trainer);
  return {sums.begin(), sums.end()};
}

void add_steps(nb::class_<Trainer>& trainer) {
  trainer
      .def("add_gradient", &Trainer::add_gradient, nb::arg("parameter"), nb::arg("gradient"),
           nb::sig("def add_gradient(self, parameter: int, gradient: object) -> None"))
      .def(
          "add_gradient_at",
          [](const Trainer& self, std::uint32_t parameter, std::uintptr_t address,
             std::size_t bytes) {
            const auto* first = reinterpret_cast<const std::byte*>(address);  // NOLINT: a handle
            const Unlocked unlocked;
            self.native().add_gradient(parameter, {first, bytes});
          },
          nb::arg("parameter"), nb::arg("address"), nb::arg("bytes"))
      .def(
          "add_device_gradient",
          [](const Trainer& self, std::uint32_t parameter, std::uintptr_t address,
             std::size_t bytes, const StreamNumber& stream) {
            const auto* first = reinterpret_cast<const std::byte*>(address);  // NOLINT: a handle
            const Unlocked unlocked;
            self.native().add_device_gradient(parameter,
                                              {.values = {first, bytes}, .ready = work_of(stream)});
          },
          nb::arg("parameter"), nb::arg("address"), nb::arg("bytes"),
          nb::arg("stream") = nb::none())
      .def(
          "reads_gradient",
          [](const Trainer& self, std::uint32_t parameter) {
            return self.native().reads_gradient(parameter);
          },
          nb::arg("parameter"))
      .def("discard_gradients", &unlocked<&EmbeddedTrainer::discard_gradients>)
      .def("discard_gradient", &unlocked<&EmbeddedTrainer::discard_gradient, std::uint32_t>,
           nb::arg("parameter"))
      .def("reopen_gradients", &unlocked<&EmbeddedTrainer::reopen_gradients>)
      .def("read_gradient", &Trainer::read_gradient, nb::arg("parameter"), nb::arg("sum"),
           nb::arg("last"),
           nb::sig("def read_gradient(self, parameter: int, sum: object, last: bool) -> None"))
      .def("write_gradient", &Trainer::write_gradient, nb::arg("parameter"), nb::arg("sum"),
           nb::sig("def write_gradient(self, parameter: int, sum: object) -> None"))
      .def("grad_norm", &unlocked<&EmbeddedTrainer::grad_norm, double>, nb::arg("divisor"))
      .def("leaf_sums", &leaf_sums)
      .def(
          "step",
          [](const Trainer& self, double divisor, double max_norm, const StreamNumber& stream,
             std::optional<double> grad_norm) {
            const engine::EmbeddedResult result = unlocked<&EmbeddedTrainer::step>(
                self, engine::EmbeddedStep{.gradient_divisor = divisor,
                                           .max_norm = max_norm,
                                           .grad_norm = grad_norm,
                                           .readers = work_of(stream)});
            return std::tuple(result.step, result.grad_norm, result.skipped);
          },
          nb::arg("divisor"), nb::arg("max_norm"), nb::arg("stream") = nb::none(),
          nb::arg("grad_norm") = nb::none())
      .def(
          "wait",
          [](const Trainer& self, std::uint32_t parameter) {
            const Unlocked unlocked;
            self.native().wait(parameter);
          },
          nb::arg("parameter"))
      .def("wait_all",
           [](const Trainer& self) {
             const Unlocked unlocked;
             self.native().wait();
           })
      .def(
          "take_values",
          [](const Trainer& self, std::uint32_t parameter, const StreamNumber& stream,
             bool changed) {
            unlocked<&EmbeddedTrainer::take_values>(
                self, parameter, work_of(stream),
                changed ? engine::TakenValues::changed : engine::TakenValues::all);
          },
          nb::arg("parameter"), nb::arg("stream") = nb::none(), nb::arg("changed") = false)
      .def("forget_uploads", &unlocked<&EmbeddedTrainer::forget_uploads>)
      .def(
          "set_group",
          [](const Trainer& self, std::uint32_t group, const cpu_adam::AdamOptions& options) {
            self.native().set_group(group, options);
          },
          nb::arg("group"), nb::arg("options"));
}

void add_state(nb::class_<Trainer>& trainer) {
  trainer
      .def("memory",
           [](const Trainer& self) {
             std::vector<std::tuple<std::string, std::string, std::uint64_t>> items;
             for (const plan::MemoryItem& item : self.native().memory()) {
               items.emplace_back(plan::name_of(item.tier), item.what, item.bytes.value());
             }
             return items;
           })
      .def_prop_ro("uploaded",
                   [](const Trainer& self) { return self.native().use().uploaded.value(); })
      .def_prop_ro("read", [](const Trainer& self) { return self.native().use().read.value(); })
      .def_prop_ro("steps", [](const Trainer& self) { return self.native().steps(); })
      .def_prop_rw(
          "updates", [](const Trainer& self) { return self.native().updates(); },
          [](const Trainer& self, std::uint64_t updates) { self.native().set_updates(updates); })
      .def(
          "updates_of",
          [](const Trainer& self, std::uint32_t parameter) {
            return self.native().updates(parameter);
          },
          nb::arg("parameter"))
      .def(
          "set_updates_of",
          [](const Trainer& self, std::uint32_t parameter, std::uint64_t updates) {
            const Unlocked unlocked;
            self.native().set_updates(parameter, updates);
          },
          nb::arg("parameter"), nb::arg("updates"))
      .def("read_state", &Trainer::read_state, nb::arg("parameter"), nb::arg("master").none(),
           nb::arg("m").none(), nb::arg("v").none(),
           nb::sig("def read_state(self, parameter: int, master: object | None, m: object | None, "
                   "v: object | None) -> None"))
      .def("write_state", &Trainer::write_state, nb::arg("parameter"), nb::arg("master").none(),
           nb::arg("m").none(), nb::arg("v").none(),
           nb::sig("def write_state(self, parameter: int, master: object | None, "
                   "m: object | None, v: object | None) -> None"))
      .def("save", &unlocked<&EmbeddedTrainer::save, std::string>, nb::arg("directory"))
      .def("load", &unlocked<&EmbeddedTrainer::load, std::string>, nb::arg("directory"));
}

}  // namespace

void add_trainer(nb::module_& module) {
  add_trainer_options(module);
  module.attr("leaf_parameters") = kLeafParameters;
  module.attr("most_unit_slots") = engine::kMostUnitSlots;
  // Arrays are `object` in signatures: tensors of PyTorch, numpy and JAX have no type in common.
  module.def(
      "norm_of",
      [](const ConstSums& leaf_sums, const std::vector<std::uint64_t>& elements) {
        return engine::norm_of({leaf_sums.data(), leaf_sums.size()}, elements);
      },
      nb::arg("leaf_sums"), nb::arg("elements"),
      nb::sig("def norm_of(leaf_sums: object, elements: collections.abc.Sequence[int]) -> float"));
  nb::class_<Trainer> trainer(
      module, "Trainer", "Trains parameters whose forward and backward another framework runs.");
  trainer.def(
      nb::init<const EmbeddedOptions&, const std::vector<Trainer::Parameter>&,
               const std::vector<Trainer::Frozen>&>(),
      nb::arg("options"), nb::arg("parameters"), nb::arg("frozen") = std::vector<Trainer::Frozen>{},
      nb::sig("def __init__(self, options: TrainerOptions, "
              "parameters: collections.abc.Sequence[tuple[str, int, object, int | None]], "
              "frozen: collections.abc.Sequence[tuple[str, int, int | None]] = ()) -> None"));
  add_values(trainer);
  add_steps(trainer);
  add_state(trainer);
}

}  // namespace spillway::python
