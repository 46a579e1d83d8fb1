#include "stores/records.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>

#include "arrays.hpp"
#include "files/checksum.hpp"
#include "stores/record_frames.hpp"

namespace stepwell::bind {
namespace {

using DictionaryIn = std::optional<std::shared_ptr<Dictionary>>;
// name, bytes, ragged, dictionary, table, checksums, path of the table, path of the checksums, is a column, has marks
using FieldIn = std::tuple<std::string, std::size_t, bool, DictionaryIn, BytesIn,
                           BytesIn, nb::object, nb::object, bool, bool>;
// field, codec, level, dictionary, values, ends or none, bytes of a record, marks or none
using ValuesIn = std::tuple<std::uint16_t, std::uint16_t, int, DictionaryIn, BytesIn,
                            std::optional<RowsIn>, std::size_t, std::optional<BytesIn>>;

template <class T>
std::vector<T> copy_as(const BytesIn& bytes, std::size_t count) {
  if (bytes.size() != count * sizeof(T))
    throw std::invalid_argument("entries of 16 bytes for each field and record are needed");
  std::vector<T> copy(count);
  if (count) std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy;
}

std::shared_ptr<Records> make_records(std::shared_ptr<Chunks> chunks,
                                      const std::vector<FieldIn>& given, BytesIn control,
                                      std::int64_t length, bool checksums) {
  auto keep = std::make_shared<std::vector<BytesIn>>();
  keep->push_back(control);
  std::vector<RecordField> fields;
  for (const auto& [name, bytes, ragged, dictionary, table, checksums, path, beside, column, marked] : given) {
    if (bytes == 0) throw std::invalid_argument("an item has at least one byte");
    if (column && (ragged || bytes + marked > kTableBlock)) throw std::invalid_argument("no such column can be");
    keep->push_back(table);
    keep->push_back(checksums);
    fields.push_back({name, bytes, ragged, dictionary.value_or(nullptr), span_of(table), span_of(checksums), path_bytes(path),
                      path_bytes(beside), column, marked});
  }
  return std::make_shared<Records>(std::move(chunks), std::move(fields), span_of(control), length,
                                   checksums, std::move(keep));
}

std::vector<std::size_t> checked_fields(const Records& records, std::vector<std::size_t> fields) {
  for (const std::size_t field : fields)
    if (field >= records.fields().size()) throw std::invalid_argument("no such field");
  return fields;
}

std::vector<std::int64_t> checked_blocks(const RowsIn& blocks) {
  auto numbers = own_copy(blocks);
  for (const auto block : numbers)
    if (block < 0) throw std::invalid_argument("a block has no negative number");
  return numbers;
}

void check_control(std::size_t bytes) {
  if (bytes < 64) throw std::invalid_argument("writer.lock has 64 bytes");
}

}  // namespace

void bind_records(nb::module_& m) {
  m.def(
      "has_codec", [](std::uint16_t codec) { return has_codec(static_cast<Codec>(codec)); }, "codec"_a,
      "Whether this machine has the library of a codec of record stores.");
  nb::class_<Dictionary>(m, "Dictionary", "A zstd dictionary.")
      .def(nb::new_([](BytesIn bytes, int level) {
             return std::make_shared<Dictionary>(span_of(bytes), level);
           }),
           "bytes"_a, "level"_a);
  nb::class_<Chunks>(m, "Chunks", "The chunk files of a record store.")
      .def(nb::new_([](nb::object folder, std::uint32_t first) {
             return std::make_shared<Chunks>(path_bytes(folder), first);
           }),
           "folder"_a, "first"_a)
      .def(
          "map_all",
          [](Chunks& chunks, RowsIn given) {
            const auto ids = own_copy(given);
            const Unlocked unlocked;
            for (const std::int64_t id : ids) try {
                chunks.at(static_cast<std::uint32_t>(id), 0);
              } catch (const std::exception&) {
                // Whoever wants a record of it will be told.
              }
          },
          "ids"_a.noconvert(), "Map these chunks, those that can be.")
      .def(
          "memory",
          [](std::shared_ptr<Chunks> chunks, std::uint32_t id, std::uint64_t end) {
            const auto bytes = chunks->at(id, end);
            auto* held = new std::shared_ptr<Chunks>(std::move(chunks));
            nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::shared_ptr<Chunks>*>(p); });
            return nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>(bytes.data(), {bytes.size()}, owner);
          },
          "id"_a, "end"_a, "A chunk's bytes, at least `end` of them, not copied.");
  nb::class_<Records>(m, "Records", "The records of a store, as a reader sees them.")
      .def(nb::new_(&make_records), "chunks"_a, "fields"_a, "control"_a.noconvert(), "length"_a,
           "checksums"_a)
      .def(
          "entries",
          [](const Records& records, RowsIn given, std::vector<std::size_t> fields) {
            const auto rows = own_copy(given);
            fields = checked_fields(records, std::move(fields));
            std::vector<std::vector<std::byte>> found;
            std::vector<EntriesOut> outs;
            for (const std::size_t field : fields) {
              found.emplace_back(rows.size() * records.fields()[field].entry());
              outs.push_back({field, found.back().data()});
            }
            {
              const Unlocked unlocked;
              check_rows(rows, records.length());
              records.entries(rows, outs);
            }
            std::vector<NumpyBytes> made;
            for (auto& each : found) made.push_back(bytes_of(std::move(each)));
            return made;
          },
          "rows"_a.noconvert(), "fields"_a, "The entries of these rows, an array of bytes for each field.")
      .def_prop_ro("length", &Records::length)
      .def(
          "read_fixed",
          [](const Records& records, std::size_t field, RowsIn given, BytesIn entries, BytesOut out) {
            checked_fields(records, {field});
            const auto rows = own_copy(given);
            const auto places = copy_as<Place>(entries, rows.size());
            if (out.size() != rows.size() * records.fields()[field].bytes)
              throw std::invalid_argument("an output has the wrong size");
            const Unlocked unlocked;
            read_fixed(records, field, rows, places, span_of(out));
          },
          "field"_a, "rows"_a.noconvert(), "places"_a.noconvert(), "out"_a.noconvert(),
          "Records of a fixed shape, read into the caller's memory.")
      .def(
          "read_ragged",
          [](const Records& records, std::size_t field, RowsIn given, BytesIn entries) {
            checked_fields(records, {field});
            const auto rows = own_copy(given);
            const auto places = copy_as<Place>(entries, rows.size());
            RaggedBatch batch;
            {
              const Unlocked unlocked;
              batch = read_ragged(records, field, rows, places);
            }
            return std::tuple(bytes_of(std::move(batch.offsets)),
                              numpy_bytes(std::move(batch.block), batch.bytes));
          },
          "field"_a, "rows"_a.noconvert(), "places"_a.noconvert(),
          "Records of any length: where each begins, in items, and the bytes of all.")
      .def(
          "find_problems",
          [](const Records& records, std::size_t field, RowsIn given, BytesIn entries, std::size_t limit,
             bool numbered) {
            checked_fields(records, {field});
            const auto rows = own_copy(given);
            const auto places = copy_as<Place>(entries, rows.size());
            std::vector<RecordProblem> problems;
            {
              const Unlocked unlocked;
              problems = find_problems(records, field, rows, places, limit, numbered);
            }
            std::vector<std::tuple<std::string, nb::str, std::uint64_t, bool>> found;
            for (const RecordProblem& p : problems)
              found.emplace_back(p.message, path_of(p.path), p.offset, p.checksum);
            return found;
          },
          "field"_a, "rows"_a.noconvert(), "places"_a.noconvert(), "limit"_a, "numbered"_a = false,
          "What is wrong with these records: message, path, offset, whether a checksum differs.")
      .def(
          "copy_frames",
          [](const Records& records, std::vector<std::size_t> fields, RowsIn given, BytesIn entries,
             RowsIn given_numbers, std::uint32_t chunk, std::uint64_t begin) {
            fields = checked_fields(records, std::move(fields));
            const auto rows = own_copy(given), numbers = own_copy(given_numbers);
            if (numbers.size() != rows.size()) throw std::invalid_argument("one number a row is needed");
            const auto places = copy_as<Place>(entries, rows.size() * fields.size());
            Framed made;
            {
              const Unlocked unlocked;
              made = copy_frames(records, fields, rows, places, numbers, chunk, begin);
            }
            return std::tuple(numpy_bytes(std::move(made.block), made.bytes), bytes_of(std::move(made.places)));
          },
          "fields"_a, "rows"_a.noconvert(), "places"_a.noconvert(), "numbers"_a.noconvert(), "chunk"_a, "begin"_a,
          "The frames of these records under new numbers, for another chunk, and their entries.");
  m.def(
      "record_reader",
      [](std::shared_ptr<Records> records, std::vector<std::size_t> fields) {
        fields = checked_fields(*records, std::move(fields));
        return record_reader(std::move(records), std::move(fields));
      },
      "records"_a, "fields"_a, "Fields of fixed shape as a source that needs no Python.");
  m.def(
      "make_frames",
      [](const std::vector<ValuesIn>& given, RowsIn given_numbers, std::uint32_t chunk, std::uint64_t begin) {
        const auto numbers = own_copy(given_numbers);
        std::vector<RecordValues> fields;
        for (const auto& [field, codec, level, dictionary, values, ends, bytes, there] : given)
          fields.push_back({field, static_cast<Codec>(codec), level, dictionary.value_or(nullptr), span_of(values),
                            ends ? span_of(*ends) : std::span<const std::int64_t>(), bytes,
                            there ? elements(*there) : std::span<const std::uint8_t>()});
        Framed made;
        {
          const Unlocked unlocked;
          made = make_frames(fields, numbers, chunk, begin);
        }
        return std::tuple(numpy_bytes(std::move(made.block), made.bytes), bytes_of(std::move(made.places)));
      },
      "fields"_a, "numbers"_a.noconvert(), "chunk"_a, "begin"_a,
      "Frames of new records for a place in a chunk, and their entries, field by field.");
  m.def(
      "find_frames",
      [](BytesIn chunk, bool exact, nb::object of) {
        FoundFrames found;
        const std::string path = path_bytes(of);
        {
          const Unlocked unlocked;
          found = find_frames(span_of(chunk), exact, path);
        }
        const std::uint64_t lost = found.lost;
        return std::tuple(bytes_of(std::move(found.frames)), lost);
      },
      "chunk"_a.noconvert(), "exact"_a, "path"_a, "The whole frames in a chunk, 32 bytes each, and the bytes lost.");
  m.def(
      "begin_change",
      [](BytesOut control, nb::object path) {
        check_control(control.size());
        begin_change(span_of(control), path_bytes(path));
      },
      "control"_a.noconvert(), "path"_a, "Mark the entries as being changed, for readers.");
  m.def(
      "end_change",
      [](BytesOut control, nb::object path, std::uint64_t commit, std::uint64_t length, std::uint64_t boot,
         std::uint64_t attributes) {
        check_control(control.size());
        end_change(span_of(control), {0, commit, length, boot, attributes}, path_bytes(path));
      },
      "control"_a.noconvert(), "path"_a, "commit"_a, "length"_a, "boot"_a, "attributes"_a, "Mark the change as done.");
  m.def(
      "read_control",
      [](BytesIn control, nb::object path) {
        check_control(control.size());
        const RecordControl now = read_control(span_of(control), path_bytes(path));
        return std::tuple(now.sequence, now.commit, now.length, now.boot, now.attributes);
      },
      "control"_a.noconvert(), "path"_a,
      "Sequence, number of the last commit, length, boot (0 when the checksum differs), and the last commit that set "
      "attributes.");
  m.def(
      "block_checksums",
      [](BytesIn table, RowsIn blocks, RowsIn commits, nb::object path) {
        const auto numbers = checked_blocks(blocks), of = own_copy(commits);
        if (!of.empty() && of.size() != numbers.size()) throw std::invalid_argument("one commit a block is needed");
        return bytes_of(block_checksums(span_of(table), numbers, of, path_bytes(path)));
      },
      "table"_a.noconvert(), "blocks"_a.noconvert(), "commits"_a.noconvert(), "path"_a,
      "The checksums of some blocks of a table; of a column there is a commit for each.");
  m.def(
      "seals_after",
      [](BytesIn table, std::size_t entry, std::size_t first, BytesIn appended, RowsIn given, BytesIn changed,
         RowsIn given_blocks, BytesIn seals, std::uint64_t commit, nb::object path) {
        const auto rows = own_copy(given), blocks = checked_blocks(given_blocks);
        if (entry == 0 || entry > kTableBlock || changed.size() != rows.size() * entry)
          throw std::invalid_argument("entries of up to 4,096 bytes, one a row, are needed");
        if (!std::ranges::is_sorted(rows) || (!rows.empty() && rows.front() < 0))
          throw std::invalid_argument("rows that ascend are needed");
        if (seals.size() % sizeof(ColumnSeal) || seals.size() / sizeof(ColumnSeal) > blocks.size())
          throw std::invalid_argument("whole seals, up to one a block, are needed");
        const std::span now(reinterpret_cast<const ColumnSeal*>(seals.data()), seals.size() / sizeof(ColumnSeal));
        return bytes_of(seals_after(span_of(table), {entry, first, span_of(appended), rows, span_of(changed)}, blocks, now,
                                    commit, path_bytes(path)));
      },
      "table"_a.noconvert(), "entry"_a, "first"_a, "appended"_a.noconvert(), "rows"_a.noconvert(),
      "changed"_a.noconvert(), "blocks"_a.noconvert(), "seals"_a.noconvert(), "commit"_a, "path"_a,
      "The checksums and commits that blocks of a column have after a change that is not done yet; the first of the "
      "blocks have these `seals` now, the others none.");
  m.def(
      "get_entries",
      [](BytesIn table, RowsIn given, BytesOut entries, nb::object path) {
        get_entries(span_of(table), own_copy(given), span_of(entries), path_bytes(path));
      },
      "table"_a.noconvert(), "rows"_a.noconvert(), "entries"_a.noconvert(), "path"_a,
      "Copy the entries of these rows out of a mapped table.");
  m.def(
      "put_entries",
      [](BytesOut table, RowsIn given, BytesIn entries, nb::object path) {
        put_entries(span_of(table), own_copy(given), span_of(entries), path_bytes(path));
      },
      "table"_a.noconvert(), "rows"_a.noconvert(), "entries"_a.noconvert(), "path"_a,
      "Put entries where these rows have theirs, in a mapped table.");
}

}  // namespace stepwell::bind
