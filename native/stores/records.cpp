#include "stores/records.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "error.hpp"
#include "files/checksum.hpp"
#include "threads.hpp"

namespace stepwell {
namespace {

constexpr std::size_t kLine = 64;
// How many records ahead the next one is asked for: some kilobytes.
std::size_t records_ahead(std::size_t bytes, std::size_t count) {
  return std::clamp<std::size_t>(4096 * count / std::max<std::size_t>(bytes, 1), 2, 8);
}

// A table of so many bytes at most is asked for whole, when so many of its blocks could have been.
constexpr std::size_t kSmallTable = std::size_t{1} << 26;
constexpr std::size_t kFewOf = 8;
// Bytes of records that one thread unpacks before it asks for more.
constexpr std::size_t kPiece = std::size_t{1} << 17;

// Reads that another process may be changing: each half whole, and the sequence tells the rest.
Place load_place(const std::byte* from) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(from);
  const std::uint64_t low = __atomic_load_n(words, __ATOMIC_RELAXED);
  const std::uint64_t high = __atomic_load_n(words + 1, __ATOMIC_RELAXED);
  return {low, static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32)};
}

// A writer changes entries for some microseconds; one that takes two seconds has stopped.
void wait_for_writer(unsigned tries) {
  if (tries < 64)
    sched_yield();
  else if (tries < 10'000)
    usleep(200);
  else
    throw Unsettled("a writer stopped in the middle of a commit; refresh() sees the last one");
}

// What packing can make of so many bytes at most. A frame that promises more is damaged, and
// nobody should make room for it.
std::uint64_t max_unpacked(const Frame& frame) {
  switch (static_cast<Codec>(frame.codec)) {
    case Codec::kRaw: return frame.stored;
    case Codec::kFlate: return std::uint64_t{frame.stored} * 1033 + 64;
    case Codec::kLz4: return std::uint64_t{frame.stored} * 256 + 64;
    default: return std::uint64_t{frame.stored} * 32768 + 64;  // a block of one byte, repeated
  }
}

// How many bytes a zstd frame says are in it; UINT64_MAX when it does not.
std::uint64_t zstd_length(std::span<const std::byte> data) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint64_t>(data[i]); };
  if (data.size() < 6 || byte(0) != 0x28 || byte(1) != 0xB5 || byte(2) != 0x2F || byte(3) != 0xFD)
    return UINT64_MAX;
  const unsigned descriptor = static_cast<unsigned>(byte(4));
  const bool single = descriptor >> 5 & 1;
  constexpr std::size_t dictionary_bytes[] = {0, 1, 2, 4};
  const std::size_t at = 5 + (single ? 0 : 1) + dictionary_bytes[descriptor & 3];
  const unsigned kind = descriptor >> 6;
  const std::size_t size = kind == 0 ? (single ? 1 : 0) : std::size_t{1} << kind;
  if (size == 0 || at + size > data.size()) return UINT64_MAX;
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < size; ++i) length |= byte(at + i) << 8 * i;
  return kind == 1 ? length + 256 : length;
}

class RecordReader final : public Reader {
 public:
  RecordReader(std::shared_ptr<const Records> records, std::vector<std::size_t> numbers,
               std::vector<std::size_t> bytes)
      : Reader(records->length(), std::move(bytes)),
        records_(std::move(records)),
        numbers_(std::move(numbers)) {
    for (std::size_t f = 0; f < numbers_.size(); ++f)
      if (!records_->fields()[numbers_[f]].column) framed_.push_back(f);
    is_made_of(records_->cold());
  }

  bool holds(std::span<const std::byte>) const override { return false; }  // it is read-only

  void expect(std::span<const std::int64_t> rows) const override { records_->expect(rows, numbers_); }

  void fill(std::span<const std::int64_t> rows, std::span<const std::int64_t> slots,
            std::span<std::byte* const> outs) const override {
    check_rows(rows, length());
    const auto part = [&](std::size_t begin, std::size_t end) {
      if (!slots.empty() || begin == 0) {
        const auto some = slots.empty() ? slots : slots.subspan(begin, end - begin);
        return fill_part(rows.subspan(begin, end - begin), some, outs);
      }
      std::vector<std::byte*> behind(outs.begin(), outs.end());
      for (std::size_t f = 0; f < behind.size(); ++f) behind[f] += begin * fields()[f];
      fill_part(rows.subspan(begin, end - begin), {}, behind);
    };
    records_->cold().watch(rows.size(), part, [&](std::size_t begin, std::size_t end) {
      expect(rows.subspan(begin, end - begin));
    });
  }

 private:
  void fill_part(std::span<const std::int64_t> rows, std::span<const std::int64_t> slots,
                 std::span<std::byte* const> outs) const {
    const std::size_t count = rows.size();
    const auto places = std::make_unique_for_overwrite<Place[]>(count * framed_.size());
    std::vector<EntriesOut> entries;
    entries.reserve(numbers_.size());
    for (std::size_t f = 0; f < numbers_.size(); ++f)
      if (records_->fields()[numbers_[f]].column) entries.push_back({numbers_[f], outs[f], true, slots});
    for (std::size_t k = 0; k < framed_.size(); ++k)
      entries.push_back({numbers_[framed_[k]], reinterpret_cast<std::byte*>(places.get() + k * count)});
    const std::size_t ahead = records_ahead(std::accumulate(fields().begin(), fields().end(), std::size_t{0}), 1);
    records_->guarded_read([&] {
      records_->entries(rows, entries);
      if (!framed_.empty()) copy(rows, slots, outs, places.get(), ahead);
    });
  }

  void copy(std::span<const std::int64_t> rows, std::span<const std::int64_t> slots, std::span<std::byte* const> outs,
            const Place* places, std::size_t ahead) const {
    const std::size_t count = rows.size();
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t k = 0; k < framed_.size(); ++k) {
        const std::size_t f = framed_[k];
        const Place* of = places + k * count;
        if (i + ahead < count) records_->ask_for(of[i + ahead]);
        const std::size_t bytes = fields()[f];
        const auto slot = slots.empty() ? i : static_cast<std::size_t>(slots[i]);
        std::byte* const to = outs[f] + slot * bytes;
        if (of[i].offset == 0) {
          std::memset(to, 0, bytes);
          continue;
        }
        const Frame frame = records_->frame(numbers_[f], of[i], rows[i]);
        records_->unpack_into(numbers_[f], of[i], frame, rows[i], {to, bytes});
      }
    }
  }

  std::shared_ptr<const Records> records_;
  std::vector<std::size_t> numbers_;
  std::vector<std::size_t> framed_;  // positions among them of those that are no columns
};

// Calls work(begin, end) for stretches of so many rows that each has about kPiece bytes.
template <class Work>
void in_pieces(const Records& records, std::size_t count, std::size_t bytes, Work&& work) {
  if (count == 0) return;
  const std::size_t step = std::max<std::size_t>(kPiece / std::max<std::size_t>(bytes / count, 1), 1);
  share_out((count + step - 1) / step, shared_pool().helpers() + 1, [&](std::size_t piece) {
    records.guarded_read([&] { work(piece * step, std::min(count, (piece + 1) * step)); });
  });
}

}  // namespace

Records::Records(std::shared_ptr<Chunks> chunks, std::vector<RecordField> fields,
                 std::span<const std::byte> control, std::int64_t length, bool checksums,
                 std::shared_ptr<const void> keep)
    : chunks_(std::move(chunks)),
      fields_(std::move(fields)),
      control_(control),
      length_(length),
      checksums_(checksums),
      keep_(std::move(keep)) {
  std::size_t bits = 0;
  for (const RecordField& field : fields_) {
    if (field.table.size() / field.entry() < static_cast<std::uint64_t>(length))
      throw FormatError("truncated: expected " + std::to_string(length) + " entries, got " +
                            std::to_string(field.table.size() / field.entry()),
                        field.table_path, field.table.size());
    first_bit_.push_back(bits);
    bits += (field.table.size() + kTableBlock - 1) / kTableBlock;
  }
  checked_ = std::make_unique<std::atomic<std::uint64_t>[]>(bits / 64 + 1);
  expected_ = std::make_unique<std::atomic<std::size_t>[]>(fields_.size());
}

std::uint64_t Records::sequence() const {
  if (control_.size() < sizeof(std::uint64_t)) return 0;
  return __atomic_load_n(reinterpret_cast<const std::uint64_t*>(control_.data()), __ATOMIC_ACQUIRE);
}

bool Records::block_is_whole(std::size_t field, std::size_t block) const {
  const RecordField& of = fields_[field];
  if (of.checksums.empty() || !checksums_) return true;
  const std::size_t size = of.column ? sizeof(ColumnSeal) : sizeof(std::uint32_t);
  if ((block + 1) * size > of.checksums.size()) return false;
  // To the end of the page, which the mapping has even where the file ends before it: what a
  // writer has appended since is covered by the checksum, too.
  const std::uint32_t found = crc32c(0, {of.table.data() + block * kTableBlock, kTableBlock});
  if (of.column) {
    ColumnSeal seal;
    std::memcpy(&seal, of.checksums.data() + block * size, size);
    return crc32c(found, std::as_bytes(std::span(&seal, 1)).subspan(sizeof(std::uint32_t))) == seal.checksum;
  }
  std::uint32_t want;
  std::memcpy(&want, of.checksums.data() + block * sizeof want, sizeof want);
  return found == want;
}

bool Records::block_is_known(std::size_t field, std::size_t block) const {
  const std::size_t bit = first_bit_[field] + block;
  const std::uint64_t mask = std::uint64_t{1} << bit % 64;
  if (checked_[bit / 64].load(std::memory_order_relaxed) & mask) [[likely]] return true;
  if (!block_is_whole(field, block)) return false;
  checked_[bit / 64].fetch_or(mask, std::memory_order_relaxed);
  return true;
}

void Records::copy_entries(std::span<const std::int64_t> rows, const EntriesOut& to, Damage& damage) const {
  constexpr std::size_t ahead = 16;
  const RecordField& of = fields_[to.field];
  const std::byte* const table = of.table.data();
  const std::size_t entry = of.entry();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i + ahead < rows.size()) __builtin_prefetch(table + static_cast<std::size_t>(rows[i + ahead]) * entry);
    const std::size_t at = static_cast<std::size_t>(rows[i]) * entry;
    const std::size_t first = at / kTableBlock, last = (at + entry - 1) / kTableBlock;
    if (!block_is_known(to.field, first)) damage.field = to.field, damage.block = first;
    if (last != first && !block_is_known(to.field, last)) damage.field = to.field, damage.block = last;
    if (!of.column) {
      const Place place = load_place(table + at);
      std::memcpy(to.out + i * sizeof place, &place, sizeof place);
      continue;
    }
    const auto mark = of.marked ? static_cast<unsigned>(table[at]) : 1;
    if (mark > 1) damage.field = to.field, damage.marked = rows[i];
    if (!to.values) {
      std::memcpy(to.out + i * entry, table + at, entry);
      continue;
    }
    const auto slot = to.slots.empty() ? i : static_cast<std::size_t>(to.slots[i]);
    if (mark)
      std::memcpy(to.out + slot * of.bytes, table + at + of.marked, of.bytes);
    else
      std::memset(to.out + slot * of.bytes, 0, of.bytes);
  }
}

void Records::entries(std::span<const std::int64_t> rows, std::span<const EntriesOut> outs) const {
  for (unsigned tries = 0;; ++tries) {
    std::uint64_t before = 0, after = 0;
    Damage damage;
    guarded_read([&] {
      before = sequence();
      if (before % 2) return;
      for (const EntriesOut& to : outs) copy_entries(rows, to, damage);
      std::atomic_thread_fence(std::memory_order_acquire);
      after = sequence();
    });
    if (before % 2) {
      wait_for_writer(tries);
      continue;
    }
    if (after != before) continue;
    if (damage.field == SIZE_MAX) return;
    const RecordField& of = fields_[damage.field];
    if (damage.marked >= 0)
      throw FormatError("record " + std::to_string(damage.marked) + ", " + of.name + ": expected a mark of 0 or 1",
                        of.table_path, static_cast<std::uint64_t>(damage.marked) * of.entry());
    const std::size_t begin = damage.block * kTableBlock;
    throw ChecksumError("records " + std::to_string(begin / of.entry()) + " to " +
                            std::to_string((begin + kTableBlock - 1) / of.entry()) + ": the " +
                            (of.column ? "values" : "entries") + " have a different checksum",
                        of.table_path, begin);
  }
}

std::pair<std::string, std::uint64_t> Records::find(const std::byte* at) const {
  const auto offset = [at](std::span<const std::byte> in) {
    return reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(in.data());
  };
  const auto pages = [](std::span<const std::byte> in) { return (in.size() + kTableBlock - 1) / kTableBlock * kTableBlock; };
  for (const RecordField& field : fields_) {
    if (offset(field.table) < pages(field.table)) return {field.table_path, offset(field.table)};
    if (offset(field.checksums) < pages(field.checksums))
      return {field.checksums_path, offset(field.checksums)};
  }
  const std::string& any = fields_.front().table_path;
  if (offset(control_) < pages(control_)) return {any.substr(0, any.rfind('/')) + "/writer.lock", offset(control_)};
  const auto found = chunks_->find(at);
  return found.first.empty() ? std::pair(any.substr(0, any.rfind('/')), std::uint64_t{0}) : found;
}

template <class Error>
void Records::fail(const std::string& what, std::size_t field, const Place& place,
                   std::int64_t row) const {
  throw Error("record " + std::to_string(row) + ", " + fields_[field].name + ": " + what,
              chunks_->path_of(place.chunk), place.offset);
}

std::span<const std::byte> Records::frame_memory(const Place& place) const {
  if (place.offset < sizeof(Frame) || place.offset > UINT64_MAX / 2) return {};
  try {
    return chunks_->at(place.chunk, place.offset + place.length)
        .subspan(place.offset - sizeof(Frame), sizeof(Frame) + place.length);
  } catch (...) {
    return {};  // whoever wants the record will say what is wrong
  }
}

// Entries of random rows are on most pages of a table, soon: a small one comes faster from beginning to end.
void Records::expect_table(std::size_t field, std::span<const std::int64_t> rows) const {
  const RecordField& of = fields_[field];
  const std::size_t entry = of.entry(), before = expected_[field].fetch_add(rows.size(), std::memory_order_relaxed);
  const std::size_t many = of.table.size() / kTableBlock / kFewOf;
  if (of.table.size() <= kSmallTable && before <= many && many < before + rows.size()) Cold::ask_whole(of.table);
  cold_.ask_alone(rows.size(), [&](std::size_t i) {
    return of.table.subspan(static_cast<std::size_t>(rows[i]) * entry, entry);
  });
}

void Records::expect(std::span<const std::int64_t> rows, std::span<const std::size_t> fields) const {
  std::vector<Place> places(rows.size());
  for (const std::size_t f : fields) try {
    const RecordField& of = fields_[f];
    if (of.column) {
      const std::size_t entry = of.entry();
      cold_.ask(rows.size(), [&](std::size_t i) {
        return of.table.subspan(static_cast<std::size_t>(rows[i]) * entry, entry);
      });
      continue;
    }
    expect_table(f, rows);
    const EntriesOut out{f, reinterpret_cast<std::byte*>(places.data())};
    entries(rows, {&out, 1});
    cold_.ask(rows.size(), [&](std::size_t i) { return frame_memory(places[i]); });
  } catch (...) {
    // Whoever reads the entries meets it again.
  }
}

void Records::ask_for(const Place& place, std::size_t lines) const {
  if (place.offset < sizeof(Frame) || place.offset > UINT64_MAX / 2) return;
  std::span<const std::byte> chunk;
  try {
    chunk = chunks_->at(place.chunk, place.offset + place.length);
  } catch (...) {
    return;  // whoever wants the record will say what is wrong
  }
  const std::byte* const begin = chunk.data() + place.offset - sizeof(Frame);
  const std::size_t bytes = std::min(sizeof(Frame) + place.length, lines * kLine);
  for (std::size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(begin + at, 0, 2);
}

Frame Records::frame(std::size_t field, const Place& place, std::int64_t row) const {
  if (place.offset < sizeof(Frame) || place.offset % kFrameAlign || place.offset > UINT64_MAX / 2)
    fail<FormatError>("no payload can be at " + std::to_string(place.offset), field, place, row);
  const auto chunk = [&] {
    try {
      return chunks_->at(place.chunk, place.offset + place.length);
    } catch (const ChunkMissing&) {
      // A rebalance removes the tables of the old generation before its chunks.
      if (access(fields_[field].table_path.c_str(), F_OK) != 0)
        throw Unsettled("record " + std::to_string(row) + ", " + fields_[field].name +
                        ": the store was rebalanced meanwhile; refresh() - at " +
                        chunks_->path_of(place.chunk));
      throw;
    } catch (const FormatError& e) {
      throw FormatError("record " + std::to_string(row) + ", " + fields_[field].name + ": " + e.what(),
                        e.path, e.offset);
    }
  }();
  Frame frame;
  std::memcpy(&frame, chunk.data() + place.offset - sizeof frame, sizeof frame);
  if (frame.stored != place.length || frame.field != field)
    fail<FormatError>("expected " + std::to_string(place.length) + " bytes of field " +
                          std::to_string(field) + ", the frame has " + std::to_string(frame.stored) +
                          " of field " + std::to_string(frame.field),
                      field, place, row);
  if (frame.codec > static_cast<std::uint16_t>(Codec::kLz4))
    fail<FormatError>("codec " + std::to_string(frame.codec) + " is not known", field, place, row);
  const std::size_t bytes = fields_[field].bytes;
  const bool fits = fields_[field].ragged ? frame.length % bytes == 0 : frame.length == bytes;
  const bool raw = frame.codec == static_cast<std::uint16_t>(Codec::kRaw);
  if (!fits || (raw && frame.length != frame.stored))
    fail<FormatError>("expected " + (fields_[field].ragged ? "items of " : std::string()) +
                          std::to_string(bytes) + " bytes, the frame has " +
                          std::to_string(frame.length) + ", " + std::to_string(frame.stored) + " stored",
                      field, place, row);
  if (raw) return frame;
  const auto codec = static_cast<Codec>(frame.codec);
  const auto said = codec == Codec::kZstd || codec == Codec::kZstdDict
                        ? zstd_length(chunk.subspan(place.offset, place.length))
                        : frame.length;
  if (frame.length > max_unpacked(frame) || frame.length != said)
    fail<FormatError>("expected " + std::to_string(frame.length) + " bytes, " +
                          std::to_string(frame.stored) + " cannot hold them",
                      field, place, row);
  return frame;
}

std::span<const std::byte> Records::payload(std::size_t field, const Place& place,
                                            const Frame& frame, std::int64_t row) const {
  const auto bytes =
      chunks_->at(place.chunk, place.offset + place.length).subspan(place.offset, place.length);
  if (checksums_) {
    const std::uint32_t found = crc32c(0, bytes);
    if (found != frame.checksum)
      fail<ChecksumError>("expected CRC32C " + hex_of(frame.checksum) + ", got " + hex_of(found), field,
                          place, row);
  }
  return bytes;
}

void Records::unpack_into(std::size_t field, const Place& place, const Frame& frame,
                          std::int64_t row, std::span<std::byte> out) const {
  const auto codec = static_cast<Codec>(frame.codec);
  if (codec == Codec::kRaw) {
    const auto bytes =
        chunks_->at(place.chunk, place.offset + place.length).subspan(place.offset, place.length);
    if (!checksums_) {
      if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size());
      return;
    }
    const std::uint32_t found = crc32c_copy(bytes, out.data());
    if (found != frame.checksum)
      fail<ChecksumError>("expected CRC32C " + hex_of(frame.checksum) + ", got " + hex_of(found), field,
                          place, row);
    return;
  }
  const auto bytes = payload(field, place, frame, row);
  try {
    unpack(codec, fields_[field].dictionary.get(), bytes, out);
  } catch (const FormatError& e) {
    fail<FormatError>(e.what(), field, place, row);
  }
}

ReaderPtr record_reader(std::shared_ptr<const Records> records, std::vector<std::size_t> numbers) {
  std::vector<std::size_t> bytes;
  for (const std::size_t number : numbers) {
    const RecordField& field = records->fields()[number];
    if (field.ragged) throw std::invalid_argument("only records of a fixed shape can be read so");
    bytes.push_back(field.bytes);
  }
  return std::make_shared<RecordReader>(std::move(records), std::move(numbers), std::move(bytes));
}

namespace {

void fixed_into(const Records& records, std::size_t field, std::span<const std::int64_t> rows,
                std::span<const Place> places, std::span<std::byte> out) {
  const std::size_t bytes = records.fields()[field].bytes;
  if (records.fields()[field].column) throw std::invalid_argument("a column has no frames");
  const std::size_t ahead = records_ahead(bytes, 1);
  in_pieces(records, rows.size(), out.size(), [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      if (i + ahead < end) records.ask_for(places[i + ahead]);
      const auto to = out.subspan(i * bytes, bytes);
      if (places[i].offset == 0) {
        std::memset(to.data(), 0, bytes);
        continue;
      }
      records.unpack_into(field, places[i], records.frame(field, places[i], rows[i]), rows[i], to);
    }
  });
}

RaggedBatch ragged_of(const Records& records, std::size_t field, std::span<const std::int64_t> rows,
                      std::span<const Place> places) {
  const std::size_t item = records.fields()[field].bytes;
  const auto frames = std::make_unique_for_overwrite<Frame[]>(rows.size());
  RaggedBatch batch;
  batch.offsets.resize(rows.size() + 1);
  std::size_t total = 0;
  records.guarded_read([&] {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i + 8 < rows.size()) records.ask_for(places[i + 8], 1);  // the frames alone
      batch.offsets[i] = static_cast<std::int64_t>(total / item);
      if (places[i].offset == 0) continue;
      frames[i] = records.frame(field, places[i], rows[i]);
      total += frames[i].length;
    }
  });
  batch.offsets[rows.size()] = static_cast<std::int64_t>(total / item);
  batch.bytes = total;
  batch.block = shared_blocks()->take(total);
  const std::size_t ahead = records_ahead(total, std::max<std::size_t>(rows.size(), 1));
  in_pieces(records, rows.size(), total, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      if (i + ahead < end) records.ask_for(places[i + ahead]);
      if (places[i].offset == 0) continue;
      const auto at = static_cast<std::size_t>(batch.offsets[i]) * item;
      records.unpack_into(field, places[i], frames[i], rows[i],
                          {batch.block.get() + at, frames[i].length});
    }
  });
  return batch;
}

}  // namespace

void read_fixed(const Records& records, std::size_t field, std::span<const std::int64_t> rows,
                std::span<const Place> places, std::span<std::byte> out) {
  records.cold().read_all(
      rows.size(), [&] { fixed_into(records, field, rows, places, out); },
      [&](std::size_t i) { return records.frame_memory(places[i]); });
}

RaggedBatch read_ragged(const Records& records, std::size_t field, std::span<const std::int64_t> rows,
                        std::span<const Place> places) {
  RaggedBatch batch;
  records.cold().read_all(
      rows.size(), [&] { batch = ragged_of(records, field, rows, places); },
      [&](std::size_t i) { return records.frame_memory(places[i]); });
  return batch;
}

std::vector<RecordProblem> find_problems(const Records& records, std::size_t field,
                                         std::span<const std::int64_t> rows,
                                         std::span<const Place> places, std::size_t limit,
                                         bool numbered) {
  std::vector<RecordProblem> problems;
  std::mutex mutex;
  std::size_t stored = 0;
  for (const Place& place : places) stored += place.length;
  in_pieces(records, rows.size(), stored, [&](std::size_t begin, std::size_t end) {
    thread_local std::vector<std::byte> memory;  // not left behind when a file is cut
    const auto note = [&](const FormatError& e, bool checksum) {
      const std::lock_guard lock(mutex);
      if (problems.size() < limit) problems.push_back({e.what(), e.path, e.offset, checksum});
    };
    for (std::size_t i = begin; i < end; ++i) {
      if (places[i].offset == 0) continue;
      try {
        Frame frame;
        records.guarded_read([&] {
          frame = records.frame(field, places[i], rows[i]);
          if (frame.codec == static_cast<std::uint16_t>(Codec::kRaw)) {
            records.payload(field, places[i], frame, rows[i]);
          } else {
            memory.resize(frame.length);
            records.unpack_into(field, places[i], frame, rows[i], memory);
          }
        });
        if (numbered && frame.record != static_cast<std::uint64_t>(rows[i]))
          throw FormatError("record " + std::to_string(rows[i]) + ": the frame is that of record " +
                                std::to_string(frame.record),
                            records.chunks().path_of(places[i].chunk), places[i].offset);
      } catch (const ChecksumError& e) {
        note(e, true);
      } catch (const FormatError& e) {
        note(e, false);
      } catch (const FileError& e) {
        note(FormatError("record " + std::to_string(rows[i]) + ": " + std::strerror(e.code), e.path, 0),
             false);
      }
    }
  });
  std::ranges::sort(problems, {}, [](const RecordProblem& p) { return std::tie(p.path, p.offset); });
  return problems;
}

}  // namespace stepwell
