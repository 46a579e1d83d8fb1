#include "stores/record_frames.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "error.hpp"
#include "files/checksum.hpp"

namespace stepwell {
namespace {

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kFrameAlign - 1) / kFrameAlign * kFrameAlign;
}

// More frames of zeros than this, one behind the other, are a hole.
constexpr std::size_t kManyZeros = 1024;

// Zeros up to where the next frame may begin; returns that place.
std::size_t close_frame(std::byte* block, std::size_t end) {
  const std::size_t next = aligned(end);
  std::memset(block + end, 0, next - end);
  return next;
}

}  // namespace

Framed make_frames(std::span<const RecordValues> fields, std::span<const std::int64_t> numbers,
                   std::uint32_t chunk, std::uint64_t begin) {
  const std::size_t count = numbers.size();
  const auto value = [&](const RecordValues& of, std::size_t i) {
    if (of.ends.empty()) return of.values.subspan(i * of.bytes, of.bytes);
    return of.values.subspan(static_cast<std::size_t>(of.ends[i]),
                             static_cast<std::size_t>(of.ends[i + 1] - of.ends[i]));
  };
  std::size_t limit = 0;
  for (const RecordValues& of : fields) {
    if (of.ends.empty() ? of.values.size() != count * of.bytes : of.ends.size() != count + 1)
      throw std::invalid_argument("values of as many records as there are numbers are needed");
    if (!of.there.empty() && of.there.size() != count)
      throw std::invalid_argument("one mark a record is needed");
    for (std::size_t i = 0; i < count; ++i) {
      if (!of.ends.empty() &&
          (of.ends[i] < 0 || of.ends[i] > of.ends[i + 1] ||
           static_cast<std::uint64_t>(of.ends[i + 1]) > of.values.size()))
        throw std::invalid_argument("a record lies outside the values");
      const std::size_t size = value(of, i).size();
      if (size > UINT32_MAX) throw std::invalid_argument("a record has less than 4 GiB");
      limit += sizeof(Frame) + aligned(size);
    }
  }
  Framed made{shared_blocks()->take(limit), 0, std::vector<Place>(fields.size() * count)};
  std::byte* const block = made.block.get();
  std::size_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t f = 0; f < fields.size(); ++f) {
      const RecordValues& of = fields[f];
      if (!of.there.empty() && !of.there[i]) continue;
      const auto data = value(of, i);
      const std::size_t payload = at + sizeof(Frame);
      Codec codec = of.codec;
      std::size_t stored = 0;
      if (codec != Codec::kRaw && data.size() > 1)
        stored = pack(codec, of.level, of.dictionary.get(), data, {block + payload, data.size() - 1});
      if (stored == 0) {
        codec = Codec::kRaw;
        stored = data.size();
        if (stored) std::memcpy(block + payload, data.data(), stored);
      }
      const Frame frame{static_cast<std::uint64_t>(numbers[i]),
                        static_cast<std::uint32_t>(stored),
                        static_cast<std::uint32_t>(data.size()),
                        crc32c(0, {block + payload, stored}),
                        of.field,
                        static_cast<std::uint16_t>(codec)};
      std::memcpy(block + at, &frame, sizeof frame);
      made.places[f * count + i] = {begin + payload, chunk, static_cast<std::uint32_t>(stored)};
      at = close_frame(block, payload + stored);
    }
  }
  made.bytes = at;
  return made;
}

Framed copy_frames(const Records& records, std::span<const std::size_t> fields, std::span<const std::int64_t> rows,
                   std::span<const Place> places, std::span<const std::int64_t> numbers,
                   std::uint32_t chunk, std::uint64_t begin) {
  constexpr std::size_t ahead = 8;
  const std::size_t count = rows.size();
  std::size_t bytes = 0;
  for (const Place& place : places)
    if (place.offset) bytes += sizeof(Frame) + aligned(place.length);
  Framed made{shared_blocks()->take(bytes), bytes, std::vector<Place>(places.size())};
  std::byte* const block = made.block.get();
  std::size_t at = 0;
  records.guarded_read([&] {
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t f = 0; f < fields.size(); ++f) {
        const Place& place = places[f * count + i];
        if (i + ahead < count) records.ask_for(places[f * count + i + ahead]);
        if (place.offset == 0) continue;
        Frame frame = records.frame(fields[f], place, rows[i]);
        const auto data = records.payload(fields[f], place, frame, rows[i]);
        frame.record = static_cast<std::uint64_t>(numbers[i]);
        std::memcpy(block + at, &frame, sizeof frame);
        const std::size_t payload = at + sizeof frame;
        if (!data.empty()) std::memcpy(block + payload, data.data(), data.size());
        made.places[f * count + i] = {begin + payload, chunk, place.length};
        at = close_frame(block, payload + data.size());
      }
    }
  });
  return made;
}

FoundFrames find_frames(std::span<const std::byte> chunk, bool exact, const std::string& path) {
  FoundFrames found;
  // The empty record 0 of field 0 is a frame of zeros, and so is what was never written. It counts
  // when it stands between frames, or before the end of those.
  std::vector<FoundFrame> zeros;
  std::size_t at = 0;
  bool in_step = true;
  guarded(chunk, path, [&] {
    while (at + sizeof(Frame) <= chunk.size()) {
      Frame frame;
      std::memcpy(&frame, chunk.data() + at, sizeof frame);
      const std::size_t payload = at + sizeof frame;
      const bool zero = frame.record == 0 && frame.stored == 0 && frame.length == 0 &&
                        frame.checksum == 0 && frame.field == 0 && frame.codec == 0;
      const bool whole = frame.codec <= static_cast<std::uint16_t>(Codec::kLz4) &&
                         frame.stored <= chunk.size() - payload &&
                         (frame.codec != 0 || frame.stored == frame.length) && (!zero || in_step) &&
                         crc32c(0, chunk.subspan(payload, frame.stored)) == frame.checksum;
      if (!whole) {
        const auto step = chunk.subspan(at, kFrameAlign);
        if (std::ranges::any_of(step, [](std::byte b) { return b != std::byte{}; }))
          found.lost += kFrameAlign;
        in_step = false;
        zeros.clear();
        at += kFrameAlign;
        continue;
      }
      const FoundFrame one{payload,      frame.record, frame.stored, frame.length,
                           frame.field, frame.codec,  0};
      if (zero) {
        if (zeros.size() < kManyZeros) zeros.push_back(one);
      } else {
        if (zeros.size() < kManyZeros)
          found.frames.insert(found.frames.end(), zeros.begin(), zeros.end());
        zeros.clear();
        found.frames.push_back(one);
      }
      in_step = true;
      at = aligned(payload + frame.stored);
    }
  });
  if (exact) found.frames.insert(found.frames.end(), zeros.begin(), zeros.end());
  return found;
}

}  // namespace stepwell
