// What keeps the memory of parameters for arrays of Python, also after the end of their trainer.
// All of it runs with the interpreter's lock held.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "runtime/engine/embedded_trainer.hpp"

namespace spillway::python {

/// A trainer, and after its end memory of its parameters alone. What keeps the memory of units has
/// no trainer, and nothing until that end.
struct Held {
  std::unique_ptr<engine::EmbeddedTrainer> trainer;
  std::shared_ptr<void> memory;

  Held() = default;
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    const nanobind::gil_scoped_release unlocked;
    trainer.reset();
    memory.reset();
  }
};

/// Returns an object of Python that shares what is held.
inline nanobind::object keeper_of(const std::shared_ptr<Held>& held) {
  auto shared = std::make_unique<std::shared_ptr<Held>>(held);
  nanobind::capsule keeper(shared.get(), [](void* each) noexcept {
    std::default_delete<std::shared_ptr<Held>>()(static_cast<std::shared_ptr<Held>*>(each));
  });
  static_cast<void>(shared.release());
  return keeper;
}

}  // namespace spillway::python
