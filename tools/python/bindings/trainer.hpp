// Trainer: an EmbeddedTrainer for Python, and what its bindings share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/engine/embedded_trainer.hpp"
#include "tools/python/bindings/arrays.hpp"
#include "tools/python/bindings/interpreter.hpp"
#include "tools/python/bindings/keeper.hpp"

namespace spillway::python {

/// An EmbeddedTrainer and what its arrays must be like.
class Trainer {
 public:
  /// A parameter's name, its group, its values at the start and its unit.
  using Parameter = std::tuple<std::string, std::uint32_t, Array, std::optional<std::uint32_t>>;

  /// A frozen tensor's name, its bytes, and its unit. Its values are written to `frozen_values`.
  using Frozen = std::tuple<std::string, std::uint64_t, std::optional<std::uint32_t>>;

  Trainer(const engine::EmbeddedOptions& options, const std::vector<Parameter>& parameters,
          const std::vector<Frozen>& frozen);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  ~Trainer();

  [[nodiscard]] engine::EmbeddedTrainer& native() const { return *held_->trainer; }
  /// Returns an object of Python that keeps the memory of parameters.
  [[nodiscard]] nanobind::object keeper() const { return keeper_of(held_); }
  /// Returns one that keeps the memory of units on the device, and not the trainer.
  [[nodiscard]] nanobind::object unit_keeper() const { return keeper_of(units_); }
  void add_gradient(std::uint32_t parameter, const Array& gradient) const;
  void read_gradient(std::uint32_t parameter, const Wide& sum, bool last) const;
  void write_gradient(std::uint32_t parameter, const ConstWide& sum) const;
  void read_state(std::uint32_t parameter, const std::optional<Wide>& master,
                  const std::optional<Wide>& m, const std::optional<Wide>& v) const;
  void write_state(std::uint32_t parameter, const std::optional<ConstWide>& master,
                   const std::optional<ConstWide>& m, const std::optional<ConstWide>& v) const;

 private:
  /// Throws `Error{invalid_argument}` for a parameter that there is not.
  [[nodiscard]] std::uint64_t elements(std::uint32_t parameter) const;

  DType dtype_;
  std::vector<std::uint64_t> elements_;
  std::shared_ptr<Held> held_ = std::make_shared<Held>();
  std::shared_ptr<Held> units_ = std::make_shared<Held>();
};

/// Number of a stream of CUDA's (cudaStream_t) whose work ours follows. None: there is none.
using StreamNumber = std::optional<std::uintptr_t>;

inline offload::ExternalWork work_of(const StreamNumber& stream) {
  if (!stream) return {};
  return {offload::ExternalWork::Kind::stream,
          reinterpret_cast<void*>(*stream)};  // NOLINT(performance-no-int-to-ptr): a handle
}

/// Calls `EmbeddedTrainer`'s function without the interpreter's lock.
template <auto Function, class... Arguments>
auto unlocked(const Trainer& trainer, Arguments... arguments) {
  engine::EmbeddedTrainer& native = trainer.native();
  const Unlocked unlocked;
  return (native.*Function)(std::move(arguments)...);
}

/// Adds where tensors are, and passes of units.
void add_values(nanobind::class_<Trainer>& trainer);

}  // namespace spillway::python
