// The array types the bindings accept and return.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "blocks.hpp"
#include "loader/prefetch.hpp"
#include "unlocked.hpp"

namespace stepwell::bind {

namespace nb = nanobind;
using namespace nb::literals;

using RowsIn = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BytesIn = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BytesOut = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NumpyBytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;
using NumpyRows = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>;

// One-dimensional arrays of any element.
template <class T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<T> elements(const nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>& array) {
  return {array.data(), array.size()};
}

inline std::span<const std::int64_t> span_of(const RowsIn& rows) {
  return {rows.data(), rows.size()};
}

// The rows as they are now. Another Python thread may change the caller's array while we
// work without the GIL, after the check.
inline std::vector<std::int64_t> own_copy(const RowsIn& rows) {
  return {rows.data(), rows.data() + rows.size()};
}

inline std::span<const std::byte> span_of(const BytesIn& bytes) {
  return std::as_bytes(std::span(bytes.data(), bytes.size()));
}

inline std::span<std::byte> span_of(const BytesOut& bytes) {
  return std::as_writable_bytes(std::span(bytes.data(), bytes.size()));
}

// A NumPy array over the first `bytes` of a block; the block is released with the array.
inline NumpyBytes numpy_bytes(BlockRef block, std::size_t bytes) {
  auto* held = new BlockRef(std::move(block));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<BlockRef*>(p); });
  return NumpyBytes(held->get(), {bytes}, owner);
}

// A fresh int64 array; fill it through `data()`.
inline NumpyRows numpy_rows(std::size_t count) {
  auto* held = new std::int64_t[count];
  nb::capsule owner(held, [](void* p) noexcept { delete[] static_cast<std::int64_t*>(p); });
  return NumpyRows(held, {count}, owner);
}

// The memory of a vector, as bytes.
template <class T>
NumpyBytes bytes_of(std::vector<T> values) {
  auto held = std::make_shared<std::vector<T>>(std::move(values));
  return numpy_bytes(BlockRef(held, reinterpret_cast<std::byte*>(held->data())), held->size() * sizeof(T));
}

// The next batch: at once when it is there. Otherwise waits without the GIL, in turns short enough for Ctrl-C to
// be felt.
Prefetch::Batch next_batch(Prefetch& prefetch);

// A path as Python spells it, whatever its bytes.
inline nb::object path_of(const std::string& path) {
  return nb::steal(PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

// The bytes the system knows a path by.
inline std::string path_bytes(nb::handle path) {
  PyObject* encoded = nullptr;
  if (!PyUnicode_FSConverter(path.ptr(), &encoded)) throw nb::python_error();
  const auto bytes = nb::steal<nb::bytes>(encoded);
  return {bytes.c_str(), bytes.size()};
}

void bind_exit(nb::module_& m);
void bind_threads(nb::module_& m);
void bind_checksum(nb::module_& m);
void bind_checked(nb::module_& m);
void bind_blocks(nb::module_& m);
void bind_order(nb::module_& m);
void bind_rowmap(nb::module_& m);
void bind_reader(nb::module_& m);
void bind_layout(nb::module_& m);
void bind_prefetch(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_cuda(nb::module_& m);
void bind_decode2048(nb::module_& m);
void bind_entries(nb::module_& m);
void bind_row_state(nb::module_& m);
void bind_runs(nb::module_& m);
void bind_jsonl(nb::module_& m);
void bind_board(nb::module_& m);
void bind_player(nb::module_& m);
void bind_records(nb::module_& m);
void bind_shards(nb::module_& m);
void bind_batch_codec(nb::module_& m);
void bind_lane(nb::module_& m);
void bind_row_buffer(nb::module_& m);

}  // namespace stepwell::bind
