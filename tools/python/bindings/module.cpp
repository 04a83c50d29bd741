#include "tools/python/bindings/bindings.hpp"
#include "tools/python/bindings/interpreter.hpp"

NB_MODULE(_native, module) {
  module.doc() = "The runtime of Spillway; spillway is its public face.";
  nanobind::set_leak_warnings(false);  // of what a thread holds that nobody joined
  spillway::python::guard_exit();
  spillway::python::translate_errors();
  spillway::python::add_native_run(module);
  spillway::python::add_trainer(module);
  spillway::python::add_forecast(module);
  spillway::python::add_configuration(module);
  spillway::python::add_checkpoint(module);
}
