// Frames of records: made for a chunk, copied to another, and found again without a table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stores/records.hpp"

namespace stepwell {

// The values of one field of some records.
struct RecordValues {
  std::uint16_t field;
  Codec codec;
  int level;
  DictionaryPtr dictionary;
  std::span<const std::byte> values;
  std::span<const std::int64_t> ends;  // record i is [ends[i], ends[i + 1]) of the values; or empty:
  std::size_t bytes;                   // so many bytes each
  std::span<const std::uint8_t> there;  // 0 for a record that has no such field; or empty
};

// Frames one behind the other, and where each payload will be: places[f * records + i].
struct Framed {
  BlockRef block;
  std::size_t bytes;
  std::vector<Place> places;
};

// Frames of records with these numbers, to be written at `begin` of a chunk. A value that packing
// does not make smaller is kept as it is. Throws std::invalid_argument for one of 4 GiB or more.
Framed make_frames(std::span<const RecordValues> fields, std::span<const std::int64_t> numbers,
                   std::uint32_t chunk, std::uint64_t begin);

// Frames of records that are stored already, under new numbers. `places` are those of `fields`, one field
// behind the other; they are checked on the way.
Framed copy_frames(const Records& records, std::span<const std::size_t> fields, std::span<const std::int64_t> rows,
                   std::span<const Place> places, std::span<const std::int64_t> numbers,
                   std::uint32_t chunk, std::uint64_t begin);

// A frame found in a chunk, and where its payload is.
struct FoundFrame {
  std::uint64_t offset;
  std::uint64_t record;
  std::uint32_t stored;
  std::uint32_t length;
  std::uint16_t field;
  std::uint16_t codec;
  std::uint32_t zero;
};
static_assert(sizeof(FoundFrame) == 32);

// The whole frames of a chunk, in order. What is none is passed over in steps of 8 bytes; `lost` is
// how many bytes that were not zeros were passed over. `exact`: the bytes end where the frames do. The
// bytes are a mapping of `path`.
struct FoundFrames {
  std::vector<FoundFrame> frames;
  std::uint64_t lost = 0;
};
FoundFrames find_frames(std::span<const std::byte> chunk, bool exact, const std::string& path);

}  // namespace stepwell
