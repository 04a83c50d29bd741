#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/model/hf/checkpoint_files.hpp"
#include "tools/python/bindings/bindings.hpp"
#include "tools/python/bindings/interpreter.hpp"

namespace spillway::python {
namespace {

namespace nb = nanobind;

/// A tensor's name, its file, the format's name of its type, its shape, and its offset and size in
/// bytes.
using Stored = std::tuple<std::string, std::string, std::string, std::vector<std::uint64_t>,
                          std::uint64_t, std::uint64_t>;

std::vector<Stored> tensors_of(const std::string& path) {
  const Unlocked unlocked;
  std::vector<Stored> tensors;
  for (const auto& file : model::open_checkpoint_files(path)) {
    for (const auto& [name, tensor] : file->header().tensors) {
      tensors.emplace_back(name, file->path(), tensor.type, tensor.shape, tensor.offset.value(),
                           tensor.size.value());
    }
  }
  return tensors;
}

}  // namespace

void add_checkpoint(nb::module_& module) {
  module.def("checkpoint_tensors", &tensors_of, nb::arg("path"),
             "Returns where the tensors of a checkpoint of safetensors lie.");
}

}  // namespace spillway::python
