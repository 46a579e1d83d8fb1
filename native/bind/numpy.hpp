// NumPy's arrays made and looked into through its own functions: a call of Python's for each field of a batch costs
// more than the batch.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace stepwell::bind {

namespace nb = nanobind;

// How every array begins; NumPy promises to keep it so.
struct Array {
  PyObject_HEAD
  std::byte* data;
  int dimensions;
  const Py_ssize_t* shape;
  const Py_ssize_t* strides;
  PyObject* base;
  PyObject* dtype;
  int flags;
};

// Functions of NumPy, found at run time: the core is built without it. Call with the GIL.
class Numpy {
 public:
  static constexpr int kContiguous = 0x1, kAligned = 0x100, kWritable = 0x400;

  static const Numpy& get() {
    // Not a guarded static: whoever waits for one would hold the GIL that its maker may need.
    static const Numpy* made = nullptr;
    if (made == nullptr) made = new Numpy;
    return *made;
  }

  // What is behind an array or one of a subclass; nullptr for anything else.
  const Array* look(nb::handle object) const {
    if (!PyObject_TypeCheck(object.ptr(), type_)) return nullptr;
    return reinterpret_cast<const Array*>(object.ptr());
  }

  // A writable array over `data`, which `base` keeps.
  nb::object over(std::byte* data, nb::handle dtype, std::span<const Py_ssize_t> shape, nb::handle base) const {
    constexpr int flags = kContiguous | kAligned | kWritable;
    PyObject* made = new_from_dtype_(type_, dtype.inc_ref().ptr(), static_cast<int>(shape.size()), shape.data(),
                                     nullptr, data, flags, nullptr);
    if (made == nullptr) throw nb::python_error();
    nb::object array = nb::steal(made);
    if (set_base_(made, base.inc_ref().ptr()) < 0) throw nb::python_error();
    return array;
  }

  nb::object over(std::byte* data, std::size_t bytes, nb::handle base) const {
    const Py_ssize_t shape[] = {static_cast<Py_ssize_t>(bytes)};
    return over(data, byte_, shape, base);
  }

  // A copy of row numbers: another Python thread may change the caller's while we work without the GIL.
  std::vector<std::int64_t> rows(nb::handle object) const {
    const Array* array = look(object);
    constexpr int flags = kContiguous | kAligned;
    if (array == nullptr || array->dimensions != 1 || (array->flags & flags) != flags || !same(array->dtype, int64_))
      throw nb::type_error("expected rows as a contiguous array of int64");
    const auto* first = reinterpret_cast<const std::int64_t*>(array->data);
    return {first, first + array->shape[0]};
  }

  static bool same(nb::handle dtype, nb::handle other) {
    if (dtype.is(other)) return true;
    const int equal = PyObject_RichCompareBool(dtype.ptr(), other.ptr(), Py_EQ);
    if (equal < 0) throw nb::python_error();
    return equal == 1;
  }

 private:
  Numpy() {
    const nb::object numpy = nb::module_::import_("numpy");
    byte_ = numpy.attr("dtype")("u1");
    int64_ = numpy.attr("dtype")("i8");
    const nb::object table = nb::module_::import_("numpy._core.multiarray").attr("_ARRAY_API");
    auto** functions = static_cast<void**>(PyCapsule_GetPointer(table.ptr(), nullptr));
    if (functions == nullptr) throw nb::python_error();
    // Their places in the table are part of NumPy's binary interface.
    type_ = static_cast<PyTypeObject*>(functions[2]);
    new_from_dtype_ = reinterpret_cast<NewFromDtype>(functions[94]);
    set_base_ = reinterpret_cast<SetBase>(functions[282]);
  }

  using NewFromDtype = PyObject* (*)(PyTypeObject*, PyObject*, int, const Py_ssize_t*, const Py_ssize_t*, void*, int,
                                     PyObject*);
  using SetBase = int (*)(PyObject*, PyObject*);

  nb::object byte_, int64_;
  PyTypeObject* type_;
  NewFromDtype new_from_dtype_;
  SetBase set_base_;
};

}  // namespace stepwell::bind
