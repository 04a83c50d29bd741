#include "tools/python/bindings/bindings.hpp"

NB_MODULE(_native, module) {
  module.doc() = "The runtime of Spillway; spillway is its public face.";
  spillway::python::translate_errors();
  spillway::python::add_native_run(module);
}
