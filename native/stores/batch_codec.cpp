#include "stores/batch_codec.hpp"

#include <unistd.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>

#include "error.hpp"
#include "files/checksum.hpp"
#include "stores/planes.hpp"
#include "threads.hpp"

namespace stepwell {
namespace {

constexpr std::size_t kAtOnce = 8;  // rows a thread takes at a time

// Calls work(i) for every i; when several throw, the lowest one is heard.
template <class Work>
void for_each_row(std::size_t count, Work&& work) {
  std::mutex lock;
  std::exception_ptr error;
  std::size_t bad = std::numeric_limits<std::size_t>::max();
  const auto piece = [&](std::size_t p) {
    for (std::size_t i = p * kAtOnce; i < std::min(count, (p + 1) * kAtOnce); ++i) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard hold(lock);
        if (i < bad) bad = i, error = std::current_exception();
        return;
      }
    }
  };
  shared_pool().run((count + kAtOnce - 1) / kAtOnce, piece);
  if (error) std::rethrow_exception(error);
}

void read_whole(int file, const std::string& path, std::uint64_t offset, std::span<std::byte> to,
                std::size_t number) {
  while (!to.empty()) {
    const ssize_t got = ::pread(file, to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError(errno, path);
    if (got == 0)
      throw FormatError("truncated: the file ends " + std::to_string(to.size()) + " bytes early", "", number);
    offset += static_cast<std::uint64_t>(got);
    to = to.subspan(static_cast<std::size_t>(got));
  }
}

// What HDF5's deflate filter has around a stream: zlib's two bytes before it, Adler-32 behind it.
constexpr std::array kZlibHead{std::byte{0x78}, std::byte{0x5e}};
constexpr std::size_t kAdlerBytes = 4, kAround = kZlibHead.size() + kAdlerBytes;

std::uint32_t adler32(Bytes bytes) {
  constexpr std::size_t kLanes = 16, kBlock = 4096;  // whose sums fit 32 bits
  constexpr std::uint32_t kBase = 65521;
  std::uint32_t low = 1, high = 0;
  while (!bytes.empty()) {
    const Bytes block = bytes.first(std::min(bytes.size(), kBlock));
    bytes = bytes.subspan(block.size());
    // A byte counts once for itself and each byte behind it. Lane by lane, compilers make vectors.
    std::array<std::uint32_t, kLanes> sums{}, before{};
    std::size_t at = 0;
    for (; at + kLanes <= block.size(); at += kLanes)
      for (std::size_t k = 0; k < kLanes; ++k) {
        before[k] += sums[k];
        sums[k] += std::to_integer<std::uint32_t>(block[at + k]);
      }
    std::uint32_t sum = 0, weighted = 0;
    for (std::size_t k = 0; k < kLanes; ++k) {
      sum += sums[k];
      weighted += kLanes * before[k] + static_cast<std::uint32_t>(kLanes - k) * sums[k];
    }
    high = (high + static_cast<std::uint32_t>(at) * low + weighted) % kBase;
    low = (low + sum) % kBase;
    for (; at < block.size(); ++at) {
      low = (low + std::to_integer<std::uint32_t>(block[at])) % kBase;
      high = (high + low) % kBase;
    }
  }
  return high << 16 | low;
}

// As `pack` of files/compress.hpp, with zlib's bytes around what is deflated.
std::size_t pack_row(Codec codec, int level, Bytes row, std::span<std::byte> to) {
  if (codec != Codec::kFlate) return pack(codec, level, nullptr, row, to);
  if (to.size() <= kAround) return 0;
  const std::size_t size =
      pack(codec, level, nullptr, row, to.subspan(kZlibHead.size(), to.size() - kAround));
  if (!size) return 0;
  std::copy(kZlibHead.begin(), kZlibHead.end(), to.begin());
  const std::uint32_t checksum = adler32(row);
  for (std::size_t i = 0; i < kAdlerBytes; ++i)
    to[kZlibHead.size() + size + i] = static_cast<std::byte>(checksum >> (24 - 8 * i));
  return size + kAround;
}

// The reverse. Adler-32 is compared where nothing else was.
void unpack_row(Codec codec, Bytes stored, std::span<std::byte> to, bool compared) {
  if (codec != Codec::kFlate) return unpack(codec, nullptr, stored, to);
  const auto byte = [&](std::size_t i) { return std::to_integer<std::uint32_t>(stored[i]); };
  if (stored.size() < kAround || (byte(0) & 15) != 8 || (byte(1) & 32) || (byte(0) << 8 | byte(1)) % 31)
    throw FormatError("expected a stream of zlib", "", 0);
  unpack(codec, nullptr, stored.subspan(kZlibHead.size(), stored.size() - kAround), to);
  std::uint32_t stated = 0;
  for (std::size_t i = stored.size() - kAdlerBytes; i < stored.size(); ++i)
    stated = stated << 8 | byte(i);
  if (compared) return;
  if (const std::uint32_t got = adler32(to); got != stated)
    throw ChecksumError("expected Adler-32 " + hex_of(stated) + ", got " + hex_of(got), "", 0);
}

}  // namespace

std::vector<std::vector<std::byte>> pack_each(Codec codec, int level, std::size_t planes,
                                              std::span<const Bytes> rows,
                                              std::span<std::uint32_t> checksums, bool shared) {
  for (const Bytes row : rows)
    if (planes == 0 || row.size() % planes)
      throw std::invalid_argument("expected rows of whole planes");
  std::vector<std::vector<std::byte>> packed(rows.size());
  const auto one = [&](std::size_t i) {
    thread_local std::vector<std::byte> space, apart;
    checksums[i] = 0;
    if (rows[i].empty()) return;
    space.resize(std::max(space.size(), rows[i].size()));
    Bytes row = rows[i];
    if (planes > 1) {
      apart.resize(std::max(apart.size(), row.size()));
      take_apart(row, planes, std::span(apart).first(row.size()));
      row = Bytes(apart).first(row.size());
    }
    const std::size_t size = pack_row(codec, level, row, std::span(space).first(row.size() - 1));
    packed[i].assign(space.begin(), space.begin() + static_cast<std::ptrdiff_t>(size));
    checksums[i] = crc32c(0, size ? Bytes(packed[i]) : rows[i]);
  };
  if (shared)
    for_each_row(rows.size(), one);
  else
    for (std::size_t i = 0; i < rows.size(); ++i) one(i);
  return packed;
}

void read_cells(int file, const std::string& path, Codec codec, std::size_t planes,
                std::span<const Cell> cells, std::span<const std::uint32_t> checksums,
                std::size_t row_bytes, std::span<std::byte> out) {
  for_each_row(cells.size(), [&](std::size_t i) {
    thread_local std::vector<std::byte> space, apart;
    const Cell& cell = cells[i];
    const std::span<std::byte> target = out.subspan(i * row_bytes, row_bytes);
    const bool raw = cell.raw || codec == Codec::kRaw;
    if (raw && cell.size != row_bytes)
      throw FormatError("expected " + std::to_string(row_bytes) + " bytes, the index has " +
                            std::to_string(cell.size),
                        "", i);
    // What packs well may be packed into more than a row; not into much more.
    if (cell.size > row_bytes + row_bytes / 8 + 4096)
      throw FormatError("expected a packed row, the index has " + std::to_string(cell.size) +
                            " bytes",
                        "", i);
    if (!raw) space.resize(std::max<std::size_t>(space.size(), cell.size));
    const std::span<std::byte> stored = raw ? target : std::span(space).first(cell.size);
    read_whole(file, path, cell.offset, stored, i);
    if (!checksums.empty()) {
      const std::uint32_t checksum = crc32c(0, stored);
      if (checksum != checksums[i])
        throw ChecksumError("expected CRC32C " + hex_of(checksums[i]) + ", got " + hex_of(checksum), "", i);
    }
    if (raw) return;
    if (planes > 1) apart.resize(std::max(apart.size(), row_bytes));
    const std::span<std::byte> unpacked = planes > 1 ? std::span(apart).first(row_bytes) : target;
    try {
      unpack_row(codec, stored, unpacked, !checksums.empty());
    } catch (const ChecksumError& error) {
      throw ChecksumError(error.what(), "", i);
    } catch (const FormatError& error) {
      throw FormatError(error.what(), "", i);
    }
    if (planes > 1) put_together(unpacked, planes, target);
  });
}

void unpack_lzf(Bytes from, std::span<std::byte> to) {
  std::size_t in = 0, at = 0;
  const auto next = [&] {
    if (in == from.size()) throw FormatError("lzf: truncated", "", 0);
    return std::to_integer<std::size_t>(from[in++]);
  };
  const auto wrong_length = [&] {
    throw FormatError("lzf: expected " + std::to_string(to.size()) + " bytes, got " +
                          (at < to.size() && in == from.size() ? std::to_string(at) : "more"),
                      "", 0);
  };
  while (in < from.size()) {
    const std::size_t control = next();
    if (control < 32) {  // as many bytes and one more follow as they are
      const std::size_t length = control + 1;
      if (length > from.size() - in) throw FormatError("lzf: truncated", "", 0);
      if (length > to.size() - at) wrong_length();
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(in), length,
                  to.begin() + static_cast<std::ptrdiff_t>(at));
      in += length;
      at += length;
      continue;
    }
    // Three bits of a length and thirteen of a distance; a length of seven goes on in a byte.
    std::size_t length = control >> 5;
    if (length == 7) length += next();
    const std::size_t distance = ((control & 31) << 8 | next()) + 1;
    length += 2;
    if (distance > at) throw FormatError("lzf: a copy from before the first byte", "", 0);
    if (length > to.size() - at) wrong_length();
    for (; length; --length, ++at) to[at] = to[at - distance];
  }
  if (at != to.size()) wrong_length();
}

void copy_past_caches(Bytes from, std::byte* to) {
#ifdef __SSE2__
  const std::size_t head =
      std::min(from.size(), -reinterpret_cast<std::uintptr_t>(to) % std::size_t{64});
  std::memcpy(to, from.data(), head);
  std::size_t at = head;
  for (; at + 64 <= from.size(); at += 64)
    for (std::size_t k = 0; k < 64; k += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + k),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from.data() + at + k)));
  _mm_sfence();
  std::memcpy(to + at, from.data() + at, from.size() - at);
#else
  std::memcpy(to, from.data(), from.size());
#endif
}

std::vector<std::uint32_t> checksum_each(Bytes rows, std::size_t row_bytes) {
  std::vector<std::uint32_t> checksums(rows.size() / row_bytes);
  for (std::size_t i = 0; i < checksums.size(); ++i)
    checksums[i] = crc32c(0, rows.subspan(i * row_bytes, row_bytes));
  return checksums;
}

}  // namespace stepwell
