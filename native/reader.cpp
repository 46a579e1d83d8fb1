#include "reader.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <numeric>
#include <stdexcept>

#include "cold.hpp"
#include "files/guard.hpp"
#include "threads.hpp"

namespace stepwell {
namespace {

constexpr std::size_t kAlign = 64;

// What a read costs, roughly, in nanoseconds: a cache miss a row, then bandwidth. Below
// kWorthSharing a helper would arrive after the work is done, and one that sleeps below
// kWorthWaking: it comes some 50 microseconds late, to cold caches, and is waited for.
constexpr std::size_t kRowCost = 8;
constexpr std::size_t kBytesPerCost = 8;
constexpr std::size_t kWorthSharing = 8000;
constexpr std::size_t kWorthWaking = 120000;
constexpr std::size_t kPieceCost = 24000;
// Rows that one thread asks the disk for ahead of those that it reads. More would only wait for memory.
constexpr std::size_t kExpected = 256;

void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

std::vector<std::size_t> bytes_of(const std::vector<Field>& fields) {
  std::vector<std::size_t> bytes;
  for (const Field& field : fields) bytes.push_back(field.bytes);
  return bytes;
}

class TableReader final : public Reader {
 public:
  TableReader(Table table, std::vector<Field> fields, std::shared_ptr<const void> keep)
      : Reader(table.rows, bytes_of(fields)),
        table_(table),
        layout_(std::move(fields)),
        keep_(std::move(keep)) {}

  void fill(std::span<const std::int64_t> rows, std::span<const std::int64_t> slots,
            std::span<std::byte* const> outs) const override {
    gather(table_, layout_, rows, slots, outs);
  }

  bool holds(std::span<const std::byte> memory) const override {
    if (table_.rows == 0) return false;
    // Rows may run backwards through memory, or all be the same.
    const auto last = table_.base + (table_.rows - 1) * table_.stride;
    const auto begin = std::min(table_.base, last), end = std::max(table_.base, last);
    return overlap(memory, {begin, end + table_.row_bytes});
  }

 private:
  Table table_;
  std::vector<Field> layout_;
  std::shared_ptr<const void> keep_;
};

class GuardedReader final : public Reader {
 public:
  GuardedReader(ReaderPtr base, std::span<const std::byte> memory, std::string path, std::uint64_t begin)
      : Reader(base->length(), {base->fields().begin(), base->fields().end()}),
        base_(std::move(base)),
        memory_(memory),
        path_(std::move(path)),
        begin_(begin) {}

  void fill(std::span<const std::int64_t> rows, std::span<const std::int64_t> slots,
            std::span<std::byte* const> outs) const override {
    check_rows(rows, length());  // it throws, and must not do so under the guard
    guarded(memory_, path_, [&] { base_->fill(rows, slots, outs); }, begin_);
  }

  bool holds(std::span<const std::byte> memory) const override { return base_->holds(memory); }

 private:
  ReaderPtr base_;
  std::span<const std::byte> memory_;
  std::string path_;
  std::uint64_t begin_;
};

class CheckedReader final : public Reader {
 public:
  CheckedReader(ReaderPtr base, std::shared_ptr<const CheckedBlocks> blocks, std::size_t stride, std::size_t from,
                std::size_t to)
      : Reader(base->length(), {base->fields().begin(), base->fields().end()}),
        base_(std::move(base)),
        blocks_(std::move(blocks)),
        stride_(stride),
        from_(from),
        to_(to) {}

  void fill(std::span<const std::int64_t> rows, std::span<const std::int64_t> slots,
            std::span<std::byte* const> outs) const override {
    blocks_->check_rows(rows, stride_, from_, to_);
    base_->fill(rows, slots, outs);
  }

  bool holds(std::span<const std::byte> memory) const override { return base_->holds(memory); }

 private:
  ReaderPtr base_;
  std::shared_ptr<const CheckedBlocks> blocks_;
  std::size_t stride_, from_, to_;
};

class MappedReader final : public Reader {
 public:
  MappedReader(ReaderPtr base, RowMapPtr map, std::vector<std::size_t> fields)
      : Reader(map->length(), std::move(fields)), base_(std::move(base)), map_(std::move(map)) {
    is_made_of(*base_);
  }

  void fill(std::span<const std::int64_t> rows, std::span<const std::int64_t> slots,
            std::span<std::byte* const> outs) const override {
    const auto width = static_cast<std::size_t>(map_->width());
    const std::size_t count = map_->mapped_size(rows.size());
    const auto memory = std::make_unique_for_overwrite<std::int64_t[]>(count);
    const std::span mapped(memory.get(), count);
    map_->apply(rows, mapped);
    if (slots.empty() || width == 1) return base_->fill(mapped, slots, outs);
    std::vector<std::int64_t> spread(mapped.size());
    for (std::size_t i = 0; i < spread.size(); ++i)
      spread[i] = slots[i / width] * static_cast<std::int64_t>(width) +
                  static_cast<std::int64_t>(i % width);
    base_->fill(mapped, spread, outs);
  }

  bool holds(std::span<const std::byte> memory) const override { return base_->holds(memory); }

  void expect(std::span<const std::int64_t> rows) const override {
    std::vector<std::int64_t> mapped(map_->mapped_size(rows.size()));
    map_->apply(rows, mapped);
    check_rows(mapped, base_->length());
    base_->expect(mapped);
  }

 private:
  ReaderPtr base_;
  RowMapPtr map_;
};

class ConcatReader final : public Reader {
 public:
  ConcatReader(std::vector<ReaderPtr> parts, std::vector<std::int64_t> ends)
      : Reader(ends.back(), {parts[0]->fields().begin(), parts[0]->fields().end()}),
        parts_(std::move(parts)),
        ends_(std::move(ends)) {
    for (const ReaderPtr& part : parts_) is_made_of(*part);
  }

  void fill(std::span<const std::int64_t> rows, std::span<const std::int64_t> slots,
            std::span<std::byte* const> outs) const override {
    // A counting sort by part: each part is asked once, and writes to its rows' own slots.
    std::vector<std::uint32_t> part_of(rows.size());
    std::vector<std::size_t> begin(parts_.size() + 1, 0);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto part = std::upper_bound(ends_.begin(), ends_.end(), rows[i]) - ends_.begin();
      part_of[i] = static_cast<std::uint32_t>(part);
      ++begin[static_cast<std::size_t>(part) + 1];
    }
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<std::int64_t> local(rows.size()), target(rows.size());
    auto next = begin;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::uint32_t part = part_of[i];
      const std::size_t at = next[part]++;
      local[at] = rows[i] - (part == 0 ? 0 : ends_[part - 1]);
      target[at] = slots.empty() ? static_cast<std::int64_t>(i) : slots[i];
    }
    for (std::size_t part = 0; part < parts_.size(); ++part)
      if (const std::size_t n = begin[part + 1] - begin[part]; n > 0)
        parts_[part]->fill(std::span(local).subspan(begin[part], n),
                           std::span(target).subspan(begin[part], n), outs);
  }

  bool holds(std::span<const std::byte> memory) const override {
    return std::ranges::any_of(parts_, [&](const auto& part) { return part->holds(memory); });
  }

  void expect(std::span<const std::int64_t> rows) const override {
    std::vector<std::vector<std::int64_t>> local(parts_.size());
    for (const std::int64_t row : rows) {
      const auto part = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), row) - ends_.begin());
      local[part].push_back(row - (part == 0 ? 0 : ends_[part - 1]));
    }
    for (std::size_t part = 0; part < parts_.size(); ++part)
      if (!local[part].empty() && parts_[part]->is_cold()) parts_[part]->expect(local[part]);
  }

 private:
  std::vector<ReaderPtr> parts_;
  std::vector<std::int64_t> ends_;
};

class JoinReader final : public Reader {
 public:
  JoinReader(std::vector<ReaderPtr> parts, std::vector<std::size_t> fields)
      : Reader(parts[0]->length(), std::move(fields)), parts_(std::move(parts)) {
    for (const ReaderPtr& part : parts_) is_made_of(*part);
  }

  void fill(std::span<const std::int64_t> rows, std::span<const std::int64_t> slots,
            std::span<std::byte* const> outs) const override {
    for (const ReaderPtr& part : parts_) {
      part->fill(rows, slots, outs.first(part->fields().size()));
      outs = outs.subspan(part->fields().size());
    }
  }

  bool holds(std::span<const std::byte> memory) const override {
    return std::ranges::any_of(parts_, [&](const auto& part) { return part->holds(memory); });
  }
  void expect(std::span<const std::int64_t> rows) const override {
    for (const ReaderPtr& part : parts_)
      if (part->is_cold()) part->expect(rows);
  }

 private:
  std::vector<ReaderPtr> parts_;
};

// Widens n numbers that end where the wide ones will end.
template <class From, class To>
void widen(std::byte* out, std::size_t n) {
  std::array<From, 1024> narrow;
  const std::byte* from = out + n * (sizeof(To) - sizeof(From));
  while (n > 0) {  // a piece is read whole before what it becomes is written over it
    const std::size_t count = std::min(n, narrow.size());
    std::memcpy(narrow.data(), from, count * sizeof(From));
    for (std::size_t i = 0; i < count; ++i) {
      const To wide = static_cast<To>(narrow[i]);
      std::memcpy(out + i * sizeof(To), &wide, sizeof(To));
    }
    from += count * sizeof(From), out += count * sizeof(To), n -= count;
  }
}

using Widen = void (*)(std::byte*, std::size_t);

Widen widening(const Width& width) {
  if (width.from == width.to) return nullptr;
  if (width.from == 2 && width.to == 4 && !width.has_sign) return widen<std::uint16_t, std::int32_t>;
  require(width.to == 8, "numbers become 8 bytes wide, or 4 from 2 without a sign");
  switch (width.from) {
    case 1: return width.has_sign ? widen<std::int8_t, std::int64_t> : widen<std::uint8_t, std::int64_t>;
    case 2: return width.has_sign ? widen<std::int16_t, std::int64_t> : widen<std::uint16_t, std::int64_t>;
    case 4: return width.has_sign ? widen<std::int32_t, std::int64_t> : widen<std::uint32_t, std::int64_t>;
    default: throw std::invalid_argument("numbers have 1, 2, 4 or 8 bytes");
  }
}

class WidenedReader final : public Reader {
 public:
  WidenedReader(ReaderPtr base, std::vector<Width> widths, std::vector<Widen> widen, std::vector<std::size_t> fields)
      : Reader(base->length(), std::move(fields)),
        base_(std::move(base)),
        widths_(std::move(widths)),
        widen_(std::move(widen)) {
    is_made_of(*base_);
  }

  void fill(std::span<const std::int64_t> rows, std::span<const std::int64_t> slots,
            std::span<std::byte* const> outs) const override {
    require(slots.empty(), "a widened reader is the outermost");
    std::vector<std::byte*> ends(outs.begin(), outs.end());
    for (std::size_t f = 0; f < ends.size(); ++f) ends[f] += rows.size() * (fields()[f] - base_->fields()[f]);
    base_->fill(rows, {}, ends);
    for (std::size_t f = 0; f < ends.size(); ++f)
      if (widen_[f]) widen_[f](outs[f], rows.size() * fields()[f] / widths_[f].to);
  }

  bool holds(std::span<const std::byte> memory) const override { return base_->holds(memory); }
  void expect(std::span<const std::int64_t> rows) const override { base_->expect(rows); }

 private:
  ReaderPtr base_;
  std::vector<Width> widths_;
  std::vector<Widen> widen_;
};

std::vector<std::byte*> places(const Reader& reader, std::span<const std::size_t> layout,
                               std::byte* block) {
  std::vector<std::byte*> outs(reader.fields().size());
  for (std::size_t f = 0; f < outs.size(); ++f) outs[f] = block + layout[f];
  return outs;
}

// A read in parts of `step` rows.
struct Pieces {
  const Reader& reader;
  std::span<const std::int64_t> rows;
  std::span<std::byte* const> outs;
  std::size_t step;

  std::size_t count() const { return (rows.size() + step - 1) / step; }
  std::span<const std::int64_t> rows_of(std::size_t piece) const {
    const std::size_t begin = std::min(piece * step, rows.size());
    return rows.subspan(begin, std::min(step, rows.size() - begin));
  }
  void expect(std::size_t piece) const {
    if (piece < count()) reader.expect(rows_of(piece));
  }
  void fill(std::size_t piece) const {
    std::vector<std::byte*> part(outs.begin(), outs.end());
    for (std::size_t f = 0; f < part.size(); ++f) part[f] += piece * step * reader.fields()[f];
    reader.fill(rows_of(piece), {}, part);
  }
  // Every `stride`-th part from `first` on, the next of which is always on its way.
  void fill_cold(std::size_t first, std::size_t stride) const {
    expect(first);
    for (std::size_t piece = first; piece < count(); piece += stride) {
      expect(piece + stride);
      fill(piece);
    }
  }
};

}  // namespace

bool Reader::is_cold() const {
  return std::ranges::any_of(colds_, [](const Cold* cold) { return cold->is_cold(); });
}

void Reader::is_made_of(const Reader& base) {
  for (const Cold* cold : base.colds_) is_made_of(*cold);
}

void Reader::is_made_of(const Cold& cold) {
  if (std::ranges::find(colds_, &cold) == colds_.end()) colds_.push_back(&cold);
}

ReaderPtr table_reader(Table table, std::vector<Field> fields, std::shared_ptr<const void> keep) {
  require(table.rows >= 0, "a table has no negative number of rows");
  for (const Field& field : fields)
    require(field.offset <= table.row_bytes && field.bytes <= table.row_bytes - field.offset,
            "a field leaves its row");
  return std::make_shared<TableReader>(table, std::move(fields), std::move(keep));
}

ReaderPtr guarded_reader(ReaderPtr base, std::span<const std::byte> memory, std::string path,
                         std::uint64_t begin) {
  return std::make_shared<GuardedReader>(std::move(base), memory, std::move(path), begin);
}

ReaderPtr checked_reader(ReaderPtr base, std::shared_ptr<const CheckedBlocks> blocks, std::size_t stride,
                         std::size_t from, std::size_t to) {
  require(from <= to && to <= stride, "a field leaves its row");
  std::size_t bytes;
  require(!__builtin_mul_overflow(static_cast<std::size_t>(base->length()), stride, &bytes) && bytes == blocks->size(),
          "the blocks are of other rows");
  return std::make_shared<CheckedReader>(std::move(base), std::move(blocks), stride, from, to);
}

ReaderPtr mapped_reader(ReaderPtr base, RowMapPtr map) {
  std::vector<std::size_t> fields(base->fields().begin(), base->fields().end());
  for (auto& bytes : fields)
    require(!__builtin_mul_overflow(bytes, static_cast<std::size_t>(map->width()), &bytes),
            "a window is too large for memory");
  return std::make_shared<MappedReader>(std::move(base), std::move(map), std::move(fields));
}

ReaderPtr concat_reader(std::vector<ReaderPtr> parts) {
  require(!parts.empty(), "nothing to concatenate");
  std::vector<std::int64_t> ends;
  std::int64_t total = 0;
  for (const ReaderPtr& part : parts) {
    require(std::ranges::equal(part->fields(), parts[0]->fields()), "the parts' fields differ");
    require(!__builtin_add_overflow(total, part->length(), &total), "more than 2**63 rows");
    ends.push_back(total);
  }
  return std::make_shared<ConcatReader>(std::move(parts), std::move(ends));
}

ReaderPtr join_reader(std::vector<ReaderPtr> parts) {
  require(!parts.empty(), "nothing to join");
  std::vector<std::size_t> fields;
  for (const ReaderPtr& part : parts) {
    require(part->length() == parts[0]->length(), "the parts' lengths differ");
    fields.insert(fields.end(), part->fields().begin(), part->fields().end());
  }
  return std::make_shared<JoinReader>(std::move(parts), std::move(fields));
}

ReaderPtr widened_reader(ReaderPtr base, std::vector<Width> widths) {
  require(widths.size() == base->fields().size(), "one width for each field is needed");
  std::vector<Widen> widen;
  std::vector<std::size_t> fields(base->fields().begin(), base->fields().end());
  for (std::size_t f = 0; f < fields.size(); ++f) {
    widen.push_back(widening(widths[f]));
    if (!widen[f]) continue;
    require(fields[f] % widths[f].from == 0, "a row has no whole number of items");
    require(!__builtin_mul_overflow(fields[f], widths[f].to / widths[f].from, &fields[f]),
            "a wider row is too large for memory");
  }
  return std::make_shared<WidenedReader>(std::move(base), std::move(widths), std::move(widen), std::move(fields));
}

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

std::vector<std::size_t> block_layout(std::span<const std::size_t> fields, std::size_t count) {
  std::vector<std::size_t> layout{0};
  for (const std::size_t bytes : fields) {
    std::size_t end;
    if (__builtin_mul_overflow(bytes, count, &end) ||
        __builtin_add_overflow(end, layout.back() + kAlign - 1, &end))
      throw std::bad_alloc();
    layout.push_back(end / kAlign * kAlign);
  }
  return layout;
}

void read(const Reader& reader, std::span<const std::int64_t> rows,
          std::span<std::byte* const> outs) {
  check_rows(rows, reader.length());
  ThreadPool& pool = shared_pool();
  if (reader.is_cold()) {
    const Pieces pieces{reader, rows, outs, kExpected};
    const std::size_t team = pool.helpers() + 1;
    // Each asks for what it reads itself: a page that is read before it was asked for brings many others with it.
    return pool.run(team, [&](std::size_t first) { pieces.fill_cold(first, team); });
  }
  std::size_t row_cost = kRowCost;
  for (const std::size_t bytes : reader.fields()) row_cost += bytes / kBytesPerCost;
  const std::size_t cost = rows.size() * row_cost, team = pool.helpers() + 1;
  if (team == 1 || cost < kWorthSharing) return reader.fill(rows, {}, outs);
  const std::size_t turns = (cost + team * kPieceCost - 1) / (team * kPieceCost);
  const Pieces pieces{reader, rows, outs, (rows.size() + turns * team - 1) / (turns * team)};
  pool.run(pieces.count(), [&](std::size_t piece) { pieces.fill(piece); }, cost < kWorthWaking);
}

void read_block(const Reader& reader, std::span<const std::int64_t> rows, std::byte* block, bool expected) {
  check_rows(rows, reader.length());
  const auto outs = places(reader, block_layout(reader, rows.size()), block);
  if (expected || !reader.is_cold()) return reader.fill(rows, {}, outs);
  Pieces{reader, rows, outs, kExpected}.fill_cold(0, 1);
}

}  // namespace stepwell
