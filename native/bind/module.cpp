#include "arrays.hpp"
#include "cuda/driver.hpp"
#include "error.hpp"

namespace stepwell::bind {
namespace {

void raise_format_error(const char* name, const FormatError& e) {
  nb::object type = nb::module_::import_("stepwell.errors").attr(name);
  nb::object path = e.path.empty() ? nb::none() : path_of(e.path);
  nb::object error = type(e.what(), "path"_a = path, "offset"_a = e.offset);
  PyErr_SetObject(type.ptr(), error.ptr());
}

void raise_busy_error(const std::exception& e) {
  nb::object type = nb::module_::import_("stepwell.errors").attr("BusyError");
  PyErr_SetString(type.ptr(), e.what());
}

// Raises those of stepwell.errors and OSError; nanobind itself knows the standard ones.
void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const ChecksumError& e) {
    raise_format_error("ChecksumError", e);
  } catch (const VersionError& e) {
    raise_format_error("VersionError", e);
  } catch (const FormatError& e) {
    raise_format_error("FormatError", e);
  } catch (const Unsettled& e) {
    raise_busy_error(e);
  } catch (const Busy& e) {
    raise_busy_error(e);
  } catch (const cuda::DeviceError& e) {
    nb::object type = nb::module_::import_("stepwell.errors").attr("DeviceError");
    PyErr_SetString(type.ptr(), e.what());
  } catch (const FileError& e) {
    errno = e.code;
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path_of(e.path).ptr());
  }
}

}  // namespace
}  // namespace stepwell::bind

NB_MODULE(_core, m) {
  m.doc() = "The compiled core. Every function that takes long releases the GIL.";
#ifndef STEPWELL_SANITIZE
  nanobind::set_leak_warnings(false);  // a process that ends by os._exit leaks, and may
#endif
  nanobind::register_exception_translator(stepwell::bind::translate);
  stepwell::bind::bind_exit(m);
  stepwell::bind::bind_threads(m);
  stepwell::bind::bind_checksum(m);
  stepwell::bind::bind_checked(m);
  stepwell::bind::bind_blocks(m);
  stepwell::bind::bind_order(m);
  stepwell::bind::bind_rowmap(m);
  stepwell::bind::bind_reader(m);
  stepwell::bind::bind_layout(m);
  stepwell::bind::bind_decode2048(m);
  stepwell::bind::bind_entries(m);
  stepwell::bind::bind_runs(m);
  stepwell::bind::bind_jsonl(m);
  stepwell::bind::bind_prefetch(m);
  stepwell::bind::bind_plan(m);
  stepwell::bind::bind_cuda(m);
  stepwell::bind::bind_board(m);
  stepwell::bind::bind_player(m);
  stepwell::bind::bind_records(m);
  stepwell::bind::bind_row_state(m);
  stepwell::bind::bind_shards(m);
  stepwell::bind::bind_batch_codec(m);
  stepwell::bind::bind_lane(m);
  stepwell::bind::bind_row_buffer(m);
}
