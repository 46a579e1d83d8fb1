#include "stores/lane.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>

#include "error.hpp"
#include "files/guard.hpp"

namespace stepwell {
namespace {

constexpr std::uint32_t kMagic = 0x4E414C46;  // FLAN
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kClosed = 1, kKept = 2;
constexpr std::size_t kHeaderBytes = 80, kSlotHead = 16, kMetricsBytes = 24;
// Sequences are twice a frame's number and a little more.
constexpr std::uint64_t kMostFrames = std::uint64_t{1} << 62;
// A writer that wakes nobody is looked at this often.
constexpr std::chrono::microseconds kLook{500};

enum HeaderAt : std::size_t {
  kAtVersion = 4,
  kAtFlags = 8,
  kAtCapacity = 12,
  kAtSlot = 16,
  kAtPayload = 20,
  kAtWidth = 24,
  kAtHeight = 28,
  kAtChannels = 32,
  kAtPixelCrc = 36,
  kAtHead = 40,
  kAtTail = 48,
  kAtMetrics = 56,
};

// All memory of a segment is read and written with atomics, as another process may be at it.
template <class T>
T load(const std::byte* at, int order = __ATOMIC_RELAXED) {
  return __atomic_load_n(reinterpret_cast<const T*>(at), order);
}

template <class T>
void store(std::byte* at, T value, int order = __ATOMIC_RELAXED) {
  __atomic_store_n(reinterpret_cast<T*>(at), value, order);
}

bool aligned(const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at) % 8 == 0; }

void copy_in(std::span<const std::byte> from, std::byte* to) {
  std::size_t i = 0;
  for (; i < from.size() && !aligned(to + i); ++i) store(to + i, static_cast<std::uint8_t>(from[i]));
  for (; i + 8 <= from.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, from.data() + i, 8);
    store(to + i, word);
  }
  for (; i < from.size(); ++i) store(to + i, static_cast<std::uint8_t>(from[i]));
}

void copy_out(const std::byte* from, std::span<std::byte> to) {
  std::size_t i = 0;
  for (; i < to.size() && !aligned(from + i); ++i) to[i] = std::byte{load<std::uint8_t>(from + i)};
  for (; i + 8 <= to.size(); i += 8) {
    const auto word = load<std::uint64_t>(from + i);
    std::memcpy(to.data() + i, &word, 8);
  }
  for (; i < to.size(); ++i) to[i] = std::byte{load<std::uint8_t>(from + i)};
}

void store_metrics(std::byte* at, const LaneMetrics& metrics) {
  store(at, std::bit_cast<std::uint64_t>(metrics.reward));
  store(at + 8, std::bit_cast<std::uint64_t>(metrics.rolling_return));
  store(at + 16, std::bit_cast<std::uint64_t>(metrics.step_rate_hz));
}

LaneMetrics load_metrics(const std::byte* at) {
  const auto number = [&](std::size_t i) { return std::bit_cast<double>(load<std::uint64_t>(at + i)); };
  return {number(0), number(8), number(16)};
}

std::size_t slot_at(const LaneLayout& layout, std::uint64_t number) {
  return kHeaderBytes + (number - 1) % layout.capacity * layout.slot_bytes();
}

std::uint32_t* head_word(std::byte* memory) {  // the lower half: what changes with each frame
  return reinterpret_cast<std::uint32_t*>(memory + kAtHead);
}

// The segment of a writer that was killed: whoever still looks at it is told.
void retire(int file) {
  std::uint32_t words[3];
  if (pread(file, words, sizeof words, 0) != sizeof words || words[0] != kMagic) return;
  words[2] |= kClosed;
  (void)!pwrite(file, &words[2], sizeof words[2], kAtFlags);  // they find it out anyhow, later
}

LaneLayout make_layout(std::uint32_t capacity, std::uint32_t width, std::uint32_t height,
                       std::uint32_t channels, std::uint32_t pixel_crc, std::uint32_t metadata_bytes) {
  if (!capacity || !width || !height || !channels)
    throw std::invalid_argument("a lane has a slot, and a frame a pixel");
  constexpr std::uint64_t limit = std::numeric_limits<std::uint32_t>::max() - kSlotHead;
  const auto pixels = std::uint64_t{width} * height;
  if (pixels > limit / channels) throw std::invalid_argument("frames of 4 GiB and more do not fit");
  const std::uint64_t payload = (pixels * channels + metadata_bytes + kMetricsBytes + 7) / 8 * 8;
  if (payload > limit) throw std::invalid_argument("frames of 4 GiB and more do not fit");
  return {capacity, static_cast<std::uint32_t>(payload), width, height, channels, pixel_crc, true};
}

// What the header says, which is whole and belongs to a segment of `size` bytes.
LaneLayout checked_layout(const std::uint32_t (&words)[10], std::size_t size, const std::string& path) {
  const auto word = [&](HeaderAt at) { return words[at / 4]; };
  const auto expect = [&](bool holds, HeaderAt at, const std::string& what) {
    if (!holds)
      throw FormatError("expected " + what + ", got " + std::to_string(word(at)), path, at);
  };
  if (words[0] != kMagic) throw FormatError("expected magic b'FLAN'", path, 0);
  if (word(kAtVersion) != kVersion)
    throw VersionError("expected version 1, got " + std::to_string(word(kAtVersion)), path, kAtVersion);
  expect(word(kAtCapacity) > 0, kAtCapacity, "at least one slot");
  expect(word(kAtWidth) > 0, kAtWidth, "a width");
  expect(word(kAtHeight) > 0, kAtHeight, "a height");
  expect(word(kAtChannels) > 0, kAtChannels, "a channel");
  const LaneLayout layout{word(kAtCapacity), word(kAtPayload),  word(kAtWidth),
                          word(kAtHeight),   word(kAtChannels), word(kAtPixelCrc),
                          (word(kAtFlags) & kKept) != 0};
  const std::uint64_t rest = layout.kept ? kMetricsBytes : 0;
  const auto pixels = std::uint64_t{layout.width} * layout.height;
  expect(layout.payload_bytes >= rest && pixels <= (layout.payload_bytes - rest) / layout.channels,
         kAtPayload, "room for a frame");
  expect(word(kAtSlot) == layout.slot_bytes(), kAtSlot,
         "slots of " + std::to_string(layout.slot_bytes()) + " bytes");
  expect(layout.slot_bytes() % 8 == 0, kAtSlot, "slots of a multiple of 8 bytes");
  if (layout.segment_bytes() > size)
    throw FormatError("truncated: expected " + std::to_string(layout.segment_bytes()) + " bytes, got " +
                          std::to_string(size),
                      path, size);
  return layout;
}

}  // namespace

std::uint64_t LaneLayout::frame_bytes() const { return std::uint64_t{width} * height * channels; }
std::uint64_t LaneLayout::metadata_bytes() const {
  return payload_bytes - frame_bytes() - (kept ? kMetricsBytes : 0);
}
std::uint64_t LaneLayout::slot_bytes() const { return kSlotHead + std::uint64_t{payload_bytes}; }
std::uint64_t LaneLayout::segment_bytes() const { return kHeaderBytes + capacity * slot_bytes(); }

LaneWriter::LaneWriter(const std::string& name, std::uint32_t capacity, std::uint32_t width,
                       std::uint32_t height, std::uint32_t channels, std::uint32_t pixel_crc,
                       std::uint32_t metadata_bytes)
    : layout_(make_layout(capacity, width, height, channels, pixel_crc, metadata_bytes)),
      process_(getpid()) {
  if (layout_.segment_bytes() > std::numeric_limits<std::int64_t>::max() / 2)
    throw FileError(ENOSPC, name);
  segment_ = Segment::create(name, layout_.segment_bytes(), &retire);
  path_ = segment_->path();
  std::byte* const memory = segment_->memory().data();
  const std::uint32_t words[] = {kVersion,       kKept,
                                 capacity,       static_cast<std::uint32_t>(layout_.slot_bytes()),
                                 layout_.payload_bytes, width,
                                 height,         channels,
                                 pixel_crc};
  guarded(segment_->memory(), path_, [&] {
    copy_in(std::as_bytes(std::span(words)), memory + kAtVersion);
    store(memory, kMagic, __ATOMIC_RELEASE);  // from here on it is a lane
  });
}

LaneWriter::~LaneWriter() {
  try {
    close();
  } catch (...) {
  }
}

bool LaneWriter::forked() const { return process_ != getpid(); }

bool LaneWriter::open() const {
  if (forked()) return false;
  const std::lock_guard lock(mutex_);
  return segment_ != nullptr;
}

std::uint64_t LaneWriter::publish(std::span<const std::byte> frame, std::span<const std::byte> metadata,
                                  const LaneMetrics& metrics) {
  if (frame.size() != layout_.frame_bytes() || metadata.size() > layout_.metadata_bytes())
    throw std::invalid_argument("expected a frame of " + std::to_string(layout_.frame_bytes()) + " bytes, got " +
                                std::to_string(frame.size()) + ", and at most " +
                                std::to_string(layout_.metadata_bytes()) + " of metadata, got " +
                                std::to_string(metadata.size()));
  if (forked()) throw std::invalid_argument(path_ + " is closed: it is another process's");
  const std::lock_guard lock(mutex_);
  if (!segment_) throw std::invalid_argument(path_ + " is closed");
  const std::uint64_t number = head_ + 1;
  std::byte* const memory = segment_->memory().data();
  std::byte* const slot = memory + slot_at(layout_, number);
  std::byte* const payload = slot + kSlotHead;
  guarded(segment_->memory(), path_, [&] {
    if (number > layout_.capacity) store(memory + kAtTail, number - layout_.capacity);
    store(slot, 2 * number + 1);
    // Nothing of the frame before the odd sequence.
    std::atomic_thread_fence(std::memory_order_release);
    store(slot + 8, static_cast<std::uint32_t>(frame.size()));
    store(slot + 12, static_cast<std::uint32_t>(metadata.size()));
    copy_in(frame, payload);
    copy_in(metadata, payload + frame.size());
    store_metrics(payload + layout_.payload_bytes - kMetricsBytes, metrics);
    store(slot, 2 * number + 2, __ATOMIC_RELEASE);
    store_metrics(memory + kAtMetrics, metrics);
    store(memory + kAtHead, number, __ATOMIC_RELEASE);
  });
  head_ = number;
  wake_all(head_word(memory));
  return number;
}

void LaneWriter::close() {
  if (forked()) return;
  const std::lock_guard lock(mutex_);
  if (!segment_) return;
  const std::unique_ptr<Segment> ends = std::move(segment_);
  std::byte* const memory = ends->memory().data();
  guarded(ends->memory(), path_, [&] { store(memory + kAtFlags, kKept | kClosed, __ATOMIC_RELEASE); });
  wake_all(head_word(memory));
}

LaneReader::LaneReader(const std::string& name) : segment_(Segment::open(name)) {
  const std::span<const std::byte> memory = segment_->memory();
  std::uint32_t words[10] = {};
  if (memory.size() >= kHeaderBytes) {
    guarded_read([&] {
      words[0] = load<std::uint32_t>(memory.data(), __ATOMIC_ACQUIRE);
      copy_out(memory.data() + 4, std::as_writable_bytes(std::span(words)).subspan(4));
    });
  } else if (!memory.empty()) {
    throw FormatError("truncated: expected a header of 80 bytes, got " + std::to_string(memory.size()), path(),
                      memory.size());
  }
  if (words[0] == 0) throw FileError(ENOENT, path());  // it is being made
  layout_ = checked_layout(words, memory.size(), path());
}

template <class Work>
void LaneReader::guarded_read(Work&& work) const {
  guarded(segment_->memory(), path(), work);
}

std::uint64_t LaneReader::head() const {
  std::uint64_t found = 0;
  guarded_read([&] { found = load<std::uint64_t>(segment_->memory().data() + kAtHead, __ATOMIC_ACQUIRE); });
  if (found > kMostFrames)
    throw FormatError("expected at most 2^62 frames, got " + std::to_string(found), path(), kAtHead);
  return found;
}

bool LaneReader::closed() const {
  std::uint32_t flags = 0;
  guarded_read([&] { flags = load<std::uint32_t>(segment_->memory().data() + kAtFlags, __ATOMIC_ACQUIRE); });
  return flags & kClosed || (layout_.kept && !segment_->held());
}

void LaneReader::wait(std::uint64_t head, std::chrono::nanoseconds limit) const {
  if (!layout_.kept) limit = std::min<std::chrono::nanoseconds>(limit, kLook);
  wait_while(head_word(segment_->memory().data()), static_cast<std::uint32_t>(head), limit);
}

std::optional<LaneFrame> LaneReader::read(std::uint64_t number, std::span<std::byte> pixels) const {
  if (pixels.size() != layout_.frame_bytes()) throw std::invalid_argument("room for one frame is needed");
  if (number == 0 || number > kMostFrames) return std::nullopt;
  const std::byte* const memory = segment_->memory().data();
  const std::size_t at = slot_at(layout_, number);
  const std::byte* const slot = memory + at;
  const std::byte* const payload = slot + kSlotHead;
  const std::uint64_t whole = 2 * number + 2;
  bool there = false;
  // Everything read before this is of the frame if the sequence still is.
  const auto still_there = [&] {
    std::atomic_thread_fence(std::memory_order_acquire);
    return load<std::uint64_t>(slot) == whole;
  };
  std::uint32_t frame_bytes = 0, metadata_bytes = 0;
  guarded_read([&] {
    there = load<std::uint64_t>(slot, __ATOMIC_ACQUIRE) == whole;
    frame_bytes = load<std::uint32_t>(slot + 8);
    metadata_bytes = load<std::uint32_t>(slot + 12);
    there = there && still_there();
  });
  if (!there) return std::nullopt;
  if (frame_bytes != pixels.size())
    throw FormatError("expected a frame of " + std::to_string(pixels.size()) + " bytes, got " +
                          std::to_string(frame_bytes),
                      path(), at + 8);
  if (metadata_bytes > layout_.metadata_bytes())
    throw FormatError("expected at most " + std::to_string(layout_.metadata_bytes()) +
                          " bytes of metadata, got " + std::to_string(metadata_bytes),
                      path(), at + 12);
  LaneFrame found{std::vector<std::byte>(metadata_bytes), {}};
  guarded_read([&] {
    copy_out(payload, pixels);
    copy_out(payload + frame_bytes, found.metadata);
    found.metrics = load_metrics(layout_.kept ? payload + layout_.payload_bytes - kMetricsBytes
                                              : memory + kAtMetrics);
    there = still_there();
  });
  if (!there) return std::nullopt;
  return found;
}

}  // namespace stepwell
