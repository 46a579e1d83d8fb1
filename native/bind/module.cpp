#include <system_error>

#include "arrays.hpp"
#include "error.hpp"

namespace stepwell::bind {
namespace {

// Raises stepwell.errors.FormatError and OSError; nanobind itself knows the standard ones.
void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const FormatError& e) {
    nb::object type = nb::module_::import_("stepwell.errors").attr("FormatError");
    nb::object error = type(e.what(), "path"_a = e.path, "offset"_a = e.offset);
    PyErr_SetObject(type.ptr(), error.ptr());
  } catch (const std::system_error& e) {
    errno = e.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, e.what());
  }
}

}  // namespace
}  // namespace stepwell::bind

NB_MODULE(_core, m) {
  m.doc() = "The compiled core. Every function that takes long releases the GIL.";
  nanobind::register_exception_translator(stepwell::bind::translate);
  stepwell::bind::bind_threads(m);
  stepwell::bind::bind_checksum(m);
  stepwell::bind::bind_blocks(m);
  stepwell::bind::bind_order(m);
  stepwell::bind::bind_rowmap(m);
  stepwell::bind::bind_reader(m);
  stepwell::bind::bind_prefetch(m);
}
