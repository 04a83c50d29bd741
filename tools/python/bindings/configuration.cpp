#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/config/schedule.hpp"
#include "runtime/config/train_options.hpp"
#include "tools/python/bindings/bindings.hpp"

namespace spillway::python {
namespace {

namespace nb = nanobind;

/// A configuration as DeepSpeed writes it, for a loop that Python runs: its optimizer, schedule and
/// loss scale.
struct Configuration {
  Configuration(std::string_view text, std::string_view origin)
      : parsed(config::parse_train_config(text, origin)),
        scale(config::initial_loss_scale(parsed.options.loss_scale,
                                         parsed.options.compute == DType::fp16)) {
    const config::AutomaticOptions& automatic = parsed.options.automatic;
    check(!automatic.micro_batch && !automatic.accumulation && !automatic.compute,
          ErrorCode::invalid_argument,
          "a batch size, an accumulation or a compute type is \"auto\": a loop of one's own needs "
          "the number, because nothing plans it");
    config::validate(parsed.options);
  }

  [[nodiscard]] const config::TrainOptions& options() const { return parsed.options; }

  config::ParsedConfig parsed;
  config::LossScaleState scale;
};

/// Takes the outcome of a step. Throws `Error{diverged}` where DeepSpeed would end the run.
void take_step(Configuration& self, bool finite) {
  const config::LossScaleOptions& rules = self.options().loss_scale;
  check(
      finite || self.options().compute != DType::fp16 || !config::is_at_minimum(rules, self.scale),
      ErrorCode::diverged,
      "gradients overflow at the least loss scale; lower the learning rate, or load an earlier "
      "checkpoint");
  self.scale = config::next_loss_scale(rules, self.scale, finite);
}

using ScaleState = std::tuple<double, std::uint32_t, std::uint32_t>;

}  // namespace

void add_configuration(nb::module_& module) {
  nb::class_<Configuration>(module, "Configuration", "A configuration as DeepSpeed writes it.")
      .def(nb::init<std::string_view, std::string_view>(), nb::arg("text"), nb::arg("origin"))
      .def_prop_ro("notes", [](const Configuration& c) { return c.parsed.notes; })
      .def_prop_ro("micro_batch", [](const Configuration& c) { return c.options().micro_batch; })
      .def_prop_ro("accumulation_steps",
                   [](const Configuration& c) { return c.options().gradient_accumulation_steps; })
      .def_prop_ro("max_norm", [](const Configuration& c) { return c.options().gradient_clipping; })
      .def_prop_ro("dtype",
                   [](const Configuration& c) { return std::string(name_of(c.options().compute)); })
      .def_prop_ro("group", [](const Configuration& c) { return c.options().adam; })
      .def_prop_ro(
          "state_format",
          [](const Configuration& c) { return std::string(name_of(c.options().state_format)); })
      .def_prop_ro("nvme",
                   [](const Configuration& c) {
                     const auto& folders = c.options().nvme;
                     return std::vector<std::string>(folders.begin(), folders.end());
                   })
      .def_prop_ro("host_memory",
                   [](const Configuration& c) {
                     const auto size = c.options().host_memory;
                     return size ? std::optional(size->value()) : std::nullopt;
                   })
      .def_prop_ro("threads", [](const Configuration& c) { return c.options().threads; })
      .def_prop_ro("seed", [](const Configuration& c) { return c.options().seed; })
      .def(
          "learning_rate",
          [](const Configuration& c, std::uint64_t update) {
            return config::learning_rate(c.options().schedule, update);
          },
          nb::arg("update"))
      .def(
          "momentum",
          [](const Configuration& c, std::uint64_t update) {
            return config::first_momentum(c.options().schedule, update);
          },
          nb::arg("update"))
      .def_prop_ro("loss_scale", [](const Configuration& c) { return c.scale.scale; })
      .def("take_step", &take_step, nb::arg("finite"))
      .def_prop_rw(
          "scale_state",
          [](const Configuration& c) {
            return ScaleState(c.scale.scale, c.scale.good_steps, c.scale.hysteresis_left);
          },
          [](Configuration& c, const ScaleState& state) {
            std::tie(c.scale.scale, c.scale.good_steps, c.scale.hysteresis_left) = state;
          });
}

}  // namespace spillway::python
