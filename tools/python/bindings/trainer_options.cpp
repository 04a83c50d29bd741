// What a Trainer is made with: its options, and the hyperparameters of groups.
#include <fmt/format.h>
#include <malloc.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nvme_swap/tile_store.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/embedded_trainer.hpp"
#include "tools/python/bindings/bindings.hpp"

namespace spillway::python {
namespace {

namespace nb = nanobind;
using engine::EmbeddedOptions;

/// Optimizers by the names that spillway/torch gives them.
constexpr std::array<std::pair<std::string_view, cpu_adam::Optimizer>, 4> kOptimizers{
    {{"adam", cpu_adam::Optimizer::adam},
     {"adagrad", cpu_adam::Optimizer::adagrad},
     {"lion", cpu_adam::Optimizer::lion},
     {"sgd", cpu_adam::Optimizer::sgd}}};

std::string optimizer_name(const cpu_adam::AdamOptions& options) {
  return std::string(std::ranges::find(kOptimizers, options.optimizer, [](const auto& each) {
                       return each.second;
                     })->first);
}

void set_optimizer(cpu_adam::AdamOptions& options, const std::string& name) {
  const auto found =
      std::ranges::find(kOptimizers, name, [](const auto& each) { return each.first; });
  check(found != kOptimizers.end(), ErrorCode::invalid_argument,
        fmt::format("there is no optimizer \"{}\"; there are adam, adagrad, lion and sgd", name));
  options.optimizer = found->second;
}

void add_group(nb::module_& module) {
  using cpu_adam::AdamOptions;
  nb::class_<AdamOptions>(module, "Group", "Hyperparameters of a parameter group.")
      .def(nb::init<>())
      .def_rw("lr", &AdamOptions::lr)
      .def_rw("beta1", &AdamOptions::beta1)
      .def_rw("beta2", &AdamOptions::beta2)
      .def_rw("eps", &AdamOptions::eps)
      .def_rw("weight_decay", &AdamOptions::weight_decay)
      .def_rw("bias_correction", &AdamOptions::bias_correction)
      .def_prop_rw(
          "decoupled",
          [](const AdamOptions& o) { return o.decay_mode == cpu_adam::DecayMode::decoupled; },
          [](AdamOptions& o, bool decoupled) {
            o.decay_mode = decoupled ? cpu_adam::DecayMode::decoupled : cpu_adam::DecayMode::l2;
          })
      .def_prop_rw("optimizer", &optimizer_name, &set_optimizer);
}

/// What becomes of parameters without a gradient, by the names that spillway/torch gives that.
constexpr std::array<std::pair<std::string_view, engine::MissingGradient>, 3> kMissing{
    {{"refuse", engine::MissingGradient::refuse},
     {"zero", engine::MissingGradient::zero},
     {"skip", engine::MissingGradient::skip}}};

std::string missing_name(const EmbeddedOptions& options) {
  return std::string(std::ranges::find(kMissing, options.missing_gradient, [](const auto& each) {
                       return each.second;
                     })->first);
}

void set_missing(EmbeddedOptions& options, const std::string& name) {
  const auto found = std::ranges::find(kMissing, name, [](const auto& each) { return each.first; });
  check(found != kMissing.end(), ErrorCode::invalid_argument,
        fmt::format("missing is \"{}\"; it is \"skip\", \"zero\" or \"refuse\"", name));
  options.missing_gradient = found->second;
}

/// Adds a size that is given as a text and read as bytes, or None.
void add_size(nb::class_<EmbeddedOptions>& options, const char* name,
              std::optional<Bytes> EmbeddedOptions::*size) {
  options.def_prop_rw(
      name,
      [size](const EmbeddedOptions& o) {
        return o.*size ? std::optional((o.*size)->value()) : std::nullopt;
      },
      [size](EmbeddedOptions& o, const std::string& text) { o.*size = parse_bytes(text); });
}

/// Adds folders on drives.
void add_folders(nb::class_<EmbeddedOptions>& options, const char* name,
                 std::vector<std::filesystem::path> EmbeddedOptions::*folders) {
  options.def_prop_rw(
      name,
      [folders](const EmbeddedOptions& o) {
        return std::vector<std::string>((o.*folders).begin(), (o.*folders).end());
      },
      [folders](EmbeddedOptions& o, const std::vector<std::string>& names) {
        (o.*folders).assign(names.begin(), names.end());
      });
}

/// Where each row of pages begins in a file, and its bytes.
using PagesOfFile = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

}  // namespace

void add_trainer_options(nb::module_& module) {
  add_group(module);
  nb::class_<EmbeddedOptions> options(module, "TrainerOptions", "What a Trainer is made with.");
  add_size(options, "host_memory", &EmbeddedOptions::host_memory);
  add_size(options, "device_memory", &EmbeddedOptions::device_memory);
  add_size(options, "gradient_memory", &EmbeddedOptions::gradient_memory);
  add_folders(options, "nvme", &EmbeddedOptions::nvme);
  add_folders(options, "frozen_nvme", &EmbeddedOptions::frozen_nvme);
  options.def(nb::init<>())
      .def_prop_rw(
          "dtype", [](const EmbeddedOptions& o) { return std::string(name_of(o.dtype)); },
          [](EmbeddedOptions& o, const std::string& name) { o.dtype = parse_dtype(name); })
      .def_prop_rw(
          "state_format",
          [](const EmbeddedOptions& o) { return std::string(name_of(o.state_format)); },
          [](EmbeddedOptions& o, const std::string& name) {
            o.state_format = parse_state_format(name);
          })
      .def_prop_rw(
          "isa",
          [](const EmbeddedOptions& o) {
            return o.isa ? std::optional(std::string(cpu_adam::name_of(*o.isa))) : std::nullopt;
          },
          [](EmbeddedOptions& o, const std::string& name) { o.isa = cpu_adam::parse_isa(name); })
      .def_prop_rw("missing", &missing_name, &set_missing)
      .def_prop_rw(
          "device",
          [](const EmbeddedOptions& o) {
            return std::string(o.device == config::DeviceKind::cuda ? "cuda" : "host");
          },
          [](EmbeddedOptions& o, const std::string& name) {
            check(name == "host" || name == "cuda", ErrorCode::invalid_argument,
                  fmt::format("there is no device \"{}\"; there are host and cuda", name));
            o.device = name == "cuda" ? config::DeviceKind::cuda : config::DeviceKind::host;
          })
      .def_prop_rw(
          "freed_values", [](const EmbeddedOptions& o) { return o.freed_values.value(); },
          [](EmbeddedOptions& o, std::uint64_t bytes) { o.freed_values = Bytes{bytes}; })
      .def(
          "share",
          [](EmbeddedOptions& o, const std::string& what, int file, const PagesOfFile& parts) {
            check(what == "parameters" || what == "frozen", ErrorCode::invalid_argument,
                  fmt::format("\"{}\" cannot be shared; parameters and frozen can", what));
            auto& pages = what == "frozen" ? o.frozen_pages : o.parameter_pages;
            pages = offload::SharedPages{.file = file, .parts = {}};
            for (const auto& [first, bytes] : parts) {
              pages->parts.push_back({.first = first, .bytes = bytes});
            }
          },
          nb::arg("what"), nb::arg("file"), nb::arg("parts"))
      .def_rw("device_index", &EmbeddedOptions::device_index)
      .def_rw("host_link_gbps", &EmbeddedOptions::host_link_gbps, nb::arg().none())
      .def_rw("groups", &EmbeddedOptions::groups)
      .def_rw("gradients_per_step", &EmbeddedOptions::gradients_per_step)
      .def_rw("defers_updates", &EmbeddedOptions::defers_updates)
      .def_rw("tile_parameters", &EmbeddedOptions::tile_parameters)
      .def_rw("threads", &EmbeddedOptions::threads)
      .def_rw("seed", &EmbeddedOptions::seed);
  // glibc keeps freed memory for later tensors of its sizes, which would not come.
  module.def("release_freed_memory", [] { static_cast<void>(malloc_trim(0)); });
  module.def(
      "parse_bytes", [](const std::string& size) { return parse_bytes(size).value(); },
      nb::arg("size"), "Returns the bytes of a size such as 8GiB.");
  module.def(
      "remove_uncommitted",
      [](const std::vector<std::string>& folders, std::uint32_t patience_ms) {
        nvme_swap::StoreOptions store;
        store.directories.assign(folders.begin(), folders.end());
        store.lock_patience = std::chrono::milliseconds{patience_ms};
        const nb::gil_scoped_release unlocked;
        for (const char* name : {"frozen", "tiles"}) {
          store.name = name;
          nvme_swap::TileStore::remove_uncommitted(store);
        }
      },
      nb::arg("folders"), nb::arg("patience_ms"),
      "Removes the state, and what is frozen, that a killed process has left in these folders, the "
      "first one first.");
}

}  // namespace spillway::python
