// The records of a store: where they are, whether they are whole, and what is in them. The bytes are
// those of docs/formats/records.md.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "blocks.hpp"
#include "cold.hpp"
#include "files/compress.hpp"
#include "files/guard.hpp"
#include "reader.hpp"
#include "stores/chunks.hpp"
#include "stores/record_tables.hpp"

namespace stepwell {

// An entry of an offset table. Offset 0: the record has no such field.
struct Place {
  std::uint64_t offset;
  std::uint32_t chunk;
  std::uint32_t length;
};
static_assert(sizeof(Place) == 16);

// What stands before a payload.
struct Frame {
  std::uint64_t record;
  std::uint32_t stored;
  std::uint32_t length;
  std::uint32_t checksum;
  std::uint16_t field;
  std::uint16_t codec;
};
static_assert(sizeof(Frame) == 24);

constexpr std::size_t kFrameAlign = 8;

struct RecordField {
  std::string name;
  std::size_t bytes;  // of a record, or of one item of a ragged one; not 0
  bool ragged;
  DictionaryPtr dictionary;
  std::span<const std::byte> table;  // at the start of a page, at least an entry a record
  std::span<const std::byte> checksums;   // for every block of the table; empty: not checked
  std::string table_path;
  std::string checksums_path;
  bool column;  // entries are the values themselves, and not Places of frames
  bool marked;  // with a byte before each: 0, the record has no such field, or 1

  std::size_t entry() const { return column ? bytes + marked : sizeof(Place); }
};

// Where the entries of a field go: one behind the other, or, of a column, its values alone, each to
// its slot (or one behind the other), zeros for a record that has none.
struct EntriesOut {
  std::size_t field;
  std::byte* out;
  bool values = false;
  std::span<const std::int64_t> slots = {};
};

// A store as a reader sees it. Safe from any thread; call without the GIL.
class Records {
 public:
  // `control` is writer.lock, mapped, or empty where nobody else can change the tables. `keep` owns
  // the memory of tables, checksums and control. Throws FormatError when a table is too short.
  Records(std::shared_ptr<Chunks> chunks, std::vector<RecordField> fields,
          std::span<const std::byte> control, std::int64_t length, bool checksums,
          std::shared_ptr<const void> keep);

  std::int64_t length() const { return length_; }
  std::span<const RecordField> fields() const { return fields_; }
  Chunks& chunks() const { return *chunks_; }

  // The entries of `rows`, which are inside the store, in some fields. All are of one commit. Throws
  // ChecksumError, FormatError for a mark that is none, and Unsettled when a writer has stopped in
  // the middle of a commit.
  void entries(std::span<const std::int64_t> rows, std::span<const EntriesOut> outs) const;

  // The frame of a payload that is there. Throws FormatError when frame and entry disagree, and
  // Unsettled when a rebalance took away a chunk that was never mapped.
  Frame frame(std::size_t field, const Place& place, std::int64_t row) const;
  // The payload behind it, as stored; throws ChecksumError when it was changed.
  std::span<const std::byte> payload(std::size_t field, const Place& place, const Frame& frame,
                                     std::int64_t row) const;
  // Fills `out`, frame.length bytes, with what is in the payload.
  void unpack_into(std::size_t field, const Place& place, const Frame& frame, std::int64_t row,
                   std::span<std::byte> out) const;
  // Has a place's first cache lines fetched ahead of their use.
  void ask_for(const Place& place, std::size_t lines = 32) const;

  // The memory of the frame of a place; nothing where none can be.
  std::span<const std::byte> frame_memory(const Place& place) const;
  // The rows of some fields, of which the entries are read, will be read soon.
  void expect(std::span<const std::int64_t> rows, std::span<const std::size_t> fields) const;
  const Cold& cold() const { return cold_; }

  // Runs `work`, which calls the functions above and owns nothing that a file cut meanwhile could make it leave
  // behind. Throws FormatError when one was.
  template <class Work>
  void guarded_read(Work&& work) const {
    guarded_any([this](const std::byte* at) { return find(at); }, work);
  }

 private:
  struct Damage {
    std::size_t field = SIZE_MAX;
    std::size_t block = 0;
    std::int64_t marked = -1;  // the row whose mark is none
  };

  std::pair<std::string, std::uint64_t> find(const std::byte* at) const;
  void copy_entries(std::span<const std::int64_t> rows, const EntriesOut& to, Damage& damage) const;
  bool block_is_known(std::size_t field, std::size_t block) const;
  bool block_is_whole(std::size_t field, std::size_t block) const;
  std::uint64_t sequence() const;
  template <class Error>
  [[noreturn]] void fail(const std::string& what, std::size_t field, const Place& place,
                         std::int64_t row) const;

  std::shared_ptr<Chunks> chunks_;
  std::vector<RecordField> fields_;
  std::span<const std::byte> control_;
  std::int64_t length_;
  bool checksums_;
  std::shared_ptr<const void> keep_;
  void expect_table(std::size_t field, std::span<const std::int64_t> rows) const;

  Cold cold_;
  std::unique_ptr<std::atomic<std::size_t>[]> expected_;  // rows of each field, while it is cold
  // Bits of blocks whose checksum was found right, of all fields in turn.
  std::vector<std::size_t> first_bit_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> checked_;
};

// Some fields of fixed shape, as a source that needs no Python.
ReaderPtr record_reader(std::shared_ptr<const Records> records, std::vector<std::size_t> fields);

// Records of a fixed shape into `out`, one after another; missing ones are zeros.
void read_fixed(const Records& records, std::size_t field, std::span<const std::int64_t> rows,
                std::span<const Place> places, std::span<std::byte> out);

// Records of any length one after another: record i is [offsets[i], offsets[i + 1]) of the items.
struct RaggedBatch {
  std::vector<std::int64_t> offsets;
  BlockRef block;
  std::size_t bytes;
};
RaggedBatch read_ragged(const Records& records, std::size_t field,
                        std::span<const std::int64_t> rows, std::span<const Place> places);

// What is wrong with some records, at most `limit` of it; with `numbered`, a frame has the number of
// its record.
struct RecordProblem {
  std::string message;
  std::string path;
  std::uint64_t offset;
  bool checksum;
};
std::vector<RecordProblem> find_problems(const Records& records, std::size_t field,
                                         std::span<const std::int64_t> rows,
                                         std::span<const Place> places, std::size_t limit,
                                         bool numbered);

}  // namespace stepwell
