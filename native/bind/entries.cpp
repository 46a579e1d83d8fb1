#include "entries.hpp"

#include <nanobind/stl/tuple.h>

#include <cstring>
#include <optional>
#include <tuple>

#include "error.hpp"
#include "files/checksum.hpp"
#include "files/guard.hpp"

namespace stepwell::bind {
namespace {

// Longer payloads are checked without the GIL; to give it away costs as much as a short one.
constexpr std::size_t kLong = std::size_t{1} << 20;

// Payloads of a mapped file, one at a time. What Python does to find one and check it costs as much as reading it.
class Slices {
 public:
  // Begins of -1 are of payloads that are not stored as they are; checksums of 0 are not compared.
  Slices(BytesIn file, nb::object view, RowsIn begins, RowsIn ends, In<std::uint32_t> checksums)
      : file_(file), view_(std::move(view)) {
    if (begins.size() != ends.size() || begins.size() != checksums.size())
      throw std::invalid_argument("one begin, end and checksum for each entry are needed");
    for (std::size_t i = 0; i < begins.size(); ++i) {
      const std::int64_t begin = begins.data()[i], end = ends.data()[i];
      if (begin >= 0 && (end < begin || static_cast<std::uint64_t>(end) > file_.size()))
        throw std::invalid_argument("an entry lies outside the file");
      entries_.push_back({begin, end, checksums.data()[i]});
    }
  }

  // A view of entry i; None when there is none, it is not stored as it is, was changed, or the file was cut.
  nb::object at(nb::handle number) const {
    const Py_ssize_t i = PyNumber_AsSsize_t(number.ptr(), nullptr);  // of too large a number, the largest
    if (i == -1 && PyErr_Occurred()) throw nb::python_error();
    if (i < 0 || static_cast<std::size_t>(i) >= entries_.size()) return nb::none();
    const auto [begin, end, checksum] = entries_[static_cast<std::size_t>(i)];
    if (begin < 0 || (checksum != 0 && !is_whole(begin, end, checksum))) return nb::none();
    PyObject* part = PySequence_GetSlice(view_.ptr(), begin, end);
    if (part == nullptr) throw nb::python_error();
    return nb::steal(part);
  }

 private:
  struct Place {
    std::int64_t begin, end;
    std::uint32_t checksum;
  };

  bool is_whole(std::int64_t begin, std::int64_t end, std::uint32_t checksum) const {
    const auto file = span_of(file_);
    const auto payload = file.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    std::optional<Unlocked> unlocked;
    if (payload.size() > kLong) unlocked.emplace();
    std::uint32_t found = 0;
    try {
      guarded(file, "", [&] { found = crc32c(0, payload); });
    } catch (const FormatError&) {
      return false;
    }
    return found == checksum;
  }

  BytesIn file_;
  nb::object view_;
  std::vector<Place> entries_;
};

}  // namespace

EntriesIn::EntriesIn(BytesIn file, BytesIn given, RowsIn given_numbers, nb::handle path)
    : file(file), table(given.size() / sizeof(Entry)), numbers(own_copy(given_numbers)) {
  if (given.size() != given_numbers.size() * sizeof(Entry))
    throw std::invalid_argument("one number for each entry of 32 bytes is needed");
  if (!table.empty()) std::memcpy(table.data(), given.data(), given.size());
  entries = {span_of(this->file), table, numbers, path_bytes(path)};
}

void bind_entries(nb::module_& m) {
  m.def(
      "check_entries",
      [](BytesIn file, BytesIn table, RowsIn numbers, nb::object path, unsigned threads) {
        const EntriesIn in(file, table, numbers, path);
        const Unlocked unlocked;
        check_entries(in.entries, threads);
      },
      "file"_a.noconvert(), "entries"_a.noconvert(), "numbers"_a.noconvert(), "path"_a, "threads"_a,
      "Raises ChecksumError for the first entry whose bytes are not those written.");
  m.def(
      "checksums_of",
      [](BytesIn file, BytesIn table, RowsIn numbers, nb::object path) {
        const EntriesIn in(file, table, numbers, path);
        std::vector<std::uint32_t> checksums;
        {
          const Unlocked unlocked;
          checksums = checksums_of(in.entries);
        }
        return bytes_of(std::move(checksums));
      },
      "file"_a.noconvert(), "entries"_a.noconvert(), "numbers"_a.noconvert(), "path"_a,
      "The CRC32C of each entry's bytes.");
  m.def(
      "copy_payloads",
      [](BytesIn file, BytesIn table, RowsIn numbers, nb::object path, unsigned threads) {
        const EntriesIn in(file, table, numbers, path);
        PayloadBatch batch;
        {
          const Unlocked unlocked;
          batch = copy_payloads(in.entries, threads);
        }
        const auto bytes = static_cast<std::size_t>(batch.offsets.back());
        return std::tuple(bytes_of(std::move(batch.offsets)), numpy_bytes(std::move(batch.block), bytes));
      },
      "file"_a.noconvert(), "entries"_a.noconvert(), "numbers"_a.noconvert(), "path"_a, "threads"_a,
      "The entries' bytes one after another: where each begins, and all of them.");
  nb::class_<Slices>(m, "Slices", "Payloads of a mapped file, one at a time.")
      .def(nb::init<BytesIn, nb::object, RowsIn, RowsIn, In<std::uint32_t>>(), "file"_a.noconvert(),
           "view"_a, "begins"_a.noconvert(), "ends"_a.noconvert(), "checksums"_a.noconvert(),
           "Where each begins (-1: not stored as it is) and ends, and its checksum (0: not compared); `view` is what\n"
           "slices are taken of.")
      .def("at", &Slices::at, "i"_a, nb::sig("def at(self, i: object) -> memoryview | None"),
           "Entry `i`; None when there is none, it is not stored as it is, or cannot be read as it was written.");
}

}  // namespace stepwell::bind
