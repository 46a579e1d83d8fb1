#include "layout.hpp"

#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <array>

namespace stepwell::bind {
namespace {

constexpr std::size_t kMaxDimensions = 64;  // NumPy's

nb::dict take(const Layout& layout, nb::handle given) {
  const auto rows = Numpy::get().rows(given);
  BlockRef block;
  {
    const Unlocked unlocked;
    block = read_shared(layout.reader(), rows, block_layout(layout.reader(), rows.size()));
  }
  return layout.batch(std::move(block), rows.size());
}

nb::object read_into(const Layout& layout, nb::handle given, nb::handle out) {
  const auto rows = Numpy::get().rows(given);
  nb::dict batch;
  const auto spans = layout.places(out, rows.size(), batch);
  if (!spans) return nb::none();
  const auto outs = checked_places(layout.reader(), rows.size(), *spans);
  {
    const Unlocked unlocked;
    read(layout.reader(), rows, outs);
  }
  return batch;
}

// NumPy's functions would make room for a character where a type has none; its class does not.
nb::object without_bytes(nb::handle dtype, std::span<const Py_ssize_t> shape) {
  nb::list sizes;
  for (const Py_ssize_t size : shape) sizes.append(size);
  return nb::module_::import_("numpy").attr("ndarray")(nb::tuple(sizes), dtype);
}

}  // namespace

Layout::Layout(ReaderPtr reader, nb::sequence fields) : reader_(std::move(reader)) {
  for (const nb::handle field : fields) {
    Column column{field[0], field[1], {0}, nb::cast<std::size_t>(field[1].attr("itemsize"))};
    for (const nb::handle size : nb::cast<nb::tuple>(field[2])) {
      column.shape.push_back(nb::cast<Py_ssize_t>(size));
      column.bytes *= static_cast<std::size_t>(column.shape.back());
    }
    if (column.shape.size() > kMaxDimensions) throw std::invalid_argument("a field has too many dimensions");
    columns_.push_back(std::move(column));
  }
  if (!std::ranges::equal(reader_->fields(), columns_, {}, {}, &Column::bytes))
    throw std::invalid_argument("the fields are not those of the reader");
}

nb::dict Layout::batch(BlockRef block, std::size_t count) const {
  const Numpy& numpy = Numpy::get();
  const auto begins = block_layout(*reader_, count);
  auto* held = new BlockRef(std::move(block));
  const nb::capsule owner(held, [](void* p) noexcept { delete static_cast<BlockRef*>(p); });
  // An array over all of the block is the base of the others.
  const nb::object whole = numpy.over(held->get(), begins.back(), owner);
  nb::dict batch;
  std::array<Py_ssize_t, kMaxDimensions> sizes;
  for (std::size_t f = 0; f < columns_.size(); ++f) {
    const Column& column = columns_[f];
    std::ranges::copy(column.shape, sizes.begin());
    sizes[0] = static_cast<Py_ssize_t>(count);
    const auto shape = std::span(sizes).first(column.shape.size());
    batch[column.name] = column.bytes == 0
                             ? without_bytes(column.dtype, shape)
                             : numpy.over(held->get() + begins[f], column.dtype, shape, whole);
  }
  return batch;
}

std::optional<std::vector<std::span<std::byte>>> Layout::places(nb::handle out, std::size_t count,
                                                                nb::dict& batch) const {
  const Numpy& numpy = Numpy::get();
  if (!PyDict_Check(out.ptr()) || static_cast<std::size_t>(PyDict_Size(out.ptr())) != columns_.size())
    return std::nullopt;
  std::vector<std::span<std::byte>> spans;
  for (const Column& column : columns_) {
    const nb::handle given = PyDict_GetItemWithError(out.ptr(), column.name.ptr());
    if (!given.is_valid() && PyErr_Occurred()) throw nb::python_error();
    const Array* array = given.is_valid() ? numpy.look(given) : nullptr;
    constexpr int flags = Numpy::kContiguous | Numpy::kWritable;
    if (array == nullptr || (array->flags & flags) != flags) return std::nullopt;
    const std::span shape(array->shape, static_cast<std::size_t>(array->dimensions));
    if (shape.size() != column.shape.size() || shape[0] != static_cast<Py_ssize_t>(count) ||
        !std::ranges::equal(shape.subspan(1), std::span(column.shape).subspan(1)) ||
        !Numpy::same(array->dtype, column.dtype))
      return std::nullopt;
    spans.emplace_back(array->data, count * column.bytes);
    batch[column.name] = given;
  }
  return spans;
}

BlockRef read_shared(const Reader& reader, std::span<const std::int64_t> rows, std::span<const std::size_t> begins) {
  BlockRef block = shared_blocks()->take(begins.back());
  std::vector<std::byte*> outs;
  for (const std::size_t begin : begins.first(begins.size() - 1)) outs.push_back(block.get() + begin);
  read(reader, rows, outs);
  return block;
}

std::vector<std::byte*> checked_places(const Reader& reader, std::size_t count,
                                       std::span<const std::span<std::byte>> outs) {
  if (outs.size() != reader.fields().size()) throw std::invalid_argument("one output for each field is needed");
  std::vector<std::byte*> places;
  for (std::size_t f = 0; f < outs.size(); ++f) {
    if (outs[f].size() != count * reader.fields()[f]) throw std::invalid_argument("an output has the wrong size");
    for (std::size_t g = 0; g < f; ++g)
      if (overlap(outs[f], outs[g])) throw std::invalid_argument("out: two fields share memory");
    if (reader.holds(outs[f])) throw std::invalid_argument("out: memory of the source itself");
    places.push_back(outs[f].data());
  }
  return places;
}

void bind_layout(nb::module_& m) {
  nb::class_<Layout>(m, "Layout", "The fields of a reader as a dict of arrays over one block.")
      .def(nb::init<ReaderPtr, nb::sequence>(), "reader"_a, "fields"_a,
           nb::sig("def __init__(self, reader: Reader, fields: Sequence[tuple[str, numpy.dtype, tuple[int, ...]]])"
                   " -> None"),
           "Name, dtype and shape of a row of each field.")
      .def("take", &take, "rows"_a, nb::sig("def take(self, rows: NDArray[numpy.int64]) -> dict[str, NDArray[typing.Any]]"),
           "These rows, in a block of the shared pool.")
      .def("read", &read_into, "rows"_a, "out"_a,
           nb::sig("def read(self, rows: NDArray[numpy.int64], out: object) -> dict[str, NDArray[typing.Any]] | None"),
           "These rows in the caller's arrays, by name; None when these are not as `take` would make them.");
}

}  // namespace stepwell::bind
