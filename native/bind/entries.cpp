#include "entries.hpp"

#include <nanobind/stl/tuple.h>

#include <cstring>
#include <tuple>

namespace stepwell::bind {

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
}

}  // namespace stepwell::bind
