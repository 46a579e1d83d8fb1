#include "files/load.hpp"

#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "error.hpp"
#include "threads.hpp"

namespace stepwell {
namespace {

// Large enough that a piece is whole huge pages, small enough that threads end together.
constexpr std::size_t kPiece = std::size_t{8} << 20;
// What is checked while it is in the cache: whole blocks.
constexpr std::size_t kStep = std::size_t{1} << 18;

}  // namespace

void load(int file, const std::string& path, std::uint64_t offset, std::span<std::byte> out,
          const CheckedBlocks* blocks, std::size_t at) {
  const auto read = [&](std::size_t from, std::size_t end) {
    while (from < end) {
      const ssize_t got = ::pread(file, out.data() + from, end - from, static_cast<off_t>(offset + from));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw FileError(errno, path);
      if (got == 0) {
        // Not offset + from: another thread's piece may be the first that lies behind the end.
        struct stat now {};
        const std::uint64_t size =
            ::fstat(file, &now) == 0 ? static_cast<std::uint64_t>(now.st_size) : offset + from;
        throw FormatError("truncated: expected " + std::to_string(offset + out.size()) +
                              " bytes, got " + std::to_string(size),
                          path, size);
      }
      from += static_cast<std::size_t>(got);
    }
  };
  // Pieces end where blocks end.
  const std::size_t ahead = blocks ? (blocks->inside() + at) % kPiece : 0;
  const auto place = [&](std::size_t from) { return std::min(from < ahead ? 0 : from - ahead, out.size()); };
  shared_pool().run((ahead + out.size() + kPiece - 1) / kPiece, [&](std::size_t piece) {
    const std::size_t last = (piece + 1) * kPiece, step = blocks ? kStep : kPiece;
    for (std::size_t from = piece * kPiece; from < last; from += step) {
      const std::size_t begin = place(from), end = place(from + step);
      read(begin, end);
      if (blocks) blocks->check(at + begin, at + end);
    }
  });
}

void begin_writeback([[maybe_unused]] int file, [[maybe_unused]] std::uint64_t offset,
                     [[maybe_unused]] std::uint64_t bytes) {
#ifdef __linux__
  sync_file_range(file, static_cast<off_t>(offset), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
#endif
}

}  // namespace stepwell
