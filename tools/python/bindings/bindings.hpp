// What the parts of the extension give to its module. All of them run with the interpreter's lock
// held, but where they say that they let it go.
#pragma once

#include <nanobind/nanobind.h>

namespace spillway::python {

/// Makes exceptions of `spillway::Error`: classes of `spillway.errors`, by the error's code.
void translate_errors();
/// Adds `plan` and `train`.
void add_native_run(nanobind::module_& module);
/// Adds `Configuration`.
void add_configuration(nanobind::module_& module);
/// Adds `checkpoint_tensors`.
void add_checkpoint(nanobind::module_& module);
/// Adds `Group` and `TrainerOptions`, which a `Trainer` is made with.
void add_trainer_options(nanobind::module_& module);
/// Adds `Forecast` and `Rates`.
void add_forecast(nanobind::module_& module);
/// Adds `Trainer`, and what it is made with.
void add_trainer(nanobind::module_& module);

}  // namespace spillway::python
