// Sources that can be read without Python, and how they are put together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "blocks.hpp"
#include "files/checked.hpp"
#include "gather.hpp"
#include "rowmap.hpp"

namespace stepwell {

class Cold;

// Rows of fixed size, one run of bytes per field. Safe to read from any number of threads.
class Reader {
 public:
  virtual ~Reader() = default;

  std::int64_t length() const { return length_; }
  // Bytes of one row of each field.
  std::span<const std::size_t> fields() const { return fields_; }

  // Whether some of `memory` is where the rows are.
  virtual bool holds(std::span<const std::byte> memory) const = 0;

  // Writes field f of rows[i] to outs[f] + slots[i] * fields()[f]; without slots, slot i is i.
  // The caller has checked the rows. One thread; call without the GIL.
  virtual void fill(std::span<const std::int64_t> rows, std::span<const std::int64_t> slots,
                    std::span<std::byte* const> outs) const = 0;

  // Whether some of the rows have met the disk lately, so that it is worth to ask for others ahead.
  bool is_cold() const;
  // These rows, which the caller has checked, will be read soon: what is not in memory is on its way.
  virtual void expect(std::span<const std::int64_t>) const {}

 protected:
  Reader(std::int64_t length, std::vector<std::size_t> fields)
      : length_(length), fields_(std::move(fields)) {}

  // What the rows of `base`, which this reader keeps, have met, is what this one's have.
  void is_made_of(const Reader& base);
  void is_made_of(const Cold& cold);

 private:
  std::int64_t length_;
  std::vector<std::size_t> fields_;
  std::vector<const Cold*> colds_;  // each once
};

using ReaderPtr = std::shared_ptr<const Reader>;

// Fields of a table in memory, which lives as long as `keep`. Throws std::invalid_argument
// when a field leaves its row.
ReaderPtr table_reader(Table table, std::vector<Field> fields, std::shared_ptr<const void> keep);

// A table in a mapped file, which someone may cut: reading what is gone is a FormatError. The base must
// be a table_reader.
ReaderPtr guarded_reader(ReaderPtr base, std::span<const std::byte> memory, std::string path,
                         std::uint64_t begin);

// The same rows, whose blocks are checked when they are first met: bytes `from` to `to` of rows of `stride` bytes.
// The base must have the rows of `blocks`, one behind the other.
ReaderPtr checked_reader(ReaderPtr base, std::shared_ptr<const CheckedBlocks> blocks, std::size_t stride,
                         std::size_t from, std::size_t to);

// A view: row i is the base's rows map(i), one after another. The base checks them.
ReaderPtr mapped_reader(ReaderPtr base, RowMapPtr map);

// The rows of each part in turn. All have the same fields.
ReaderPtr concat_reader(std::vector<ReaderPtr> parts);

// The fields of each part side by side. All have the same length.
ReaderPtr join_reader(std::vector<ReaderPtr> parts);

// Whole numbers of `from` bytes that become ones of `to` bytes; the same size leaves a field as it is.
struct Width {
  std::size_t from, to;
  bool has_sign;
};

// The same rows with wider numbers: the base fills the end of each output, from where they are widened
// in place while they are in the cache. The outermost reader only: it takes no slots.
ReaderPtr widened_reader(ReaderPtr base, std::vector<Width> widths);

// Whether two stretches of memory have a byte in common.
bool overlap(std::span<const std::byte> a, std::span<const std::byte> b);

// Where each field begins in a block that holds `count` rows, and, last, the block's size.
// Fields begin at multiples of 64 bytes. Throws std::bad_alloc when the sizes overflow.
std::vector<std::size_t> block_layout(std::span<const std::size_t> fields, std::size_t count);
inline std::vector<std::size_t> block_layout(const Reader& reader, std::size_t count) {
  return block_layout(reader.fields(), count);
}

// Checks every row, then fills `outs` on the shared pool; on std::out_of_range nothing was
// written. Call without the GIL.
void read(const Reader& reader, std::span<const std::int64_t> rows,
          std::span<std::byte* const> outs);

// The same on the calling thread alone, into a block laid out by block_layout. `expected`: rows that may not be in memory
// are on their way already.
void read_block(const Reader& reader, std::span<const std::int64_t> rows, std::byte* block, bool expected = false);

}  // namespace stepwell
