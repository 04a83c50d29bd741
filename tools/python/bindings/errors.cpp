#include <fmt/format.h>

#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "runtime/base/as_error.hpp"
#include "runtime/base/error.hpp"
#include "tools/python/bindings/bindings.hpp"

namespace spillway::python {
namespace {

namespace nb = nanobind;

void raise(const Error& error) {
  const std::string where = fmt::format("{}:{}", error.where().file_name(), error.where().line());
  const std::string code(name_of(error.code()));
  const nb::object raised =
      nb::module_::import_("spillway.errors")
          .attr("from_native")(code.c_str(), error.what(), error.native(), where.c_str());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
}

}  // namespace

void translate_errors() {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      raise(error);
    } catch (const std::bad_alloc& error) {
      raise(as_error(error));
    } catch (const std::system_error& error) {
      raise(as_error(error));
    }
  });
}

}  // namespace spillway::python
