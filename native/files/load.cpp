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

}  // namespace

void load(int file, const std::string& path, std::uint64_t offset, std::span<std::byte> out) {
  shared_pool().run((out.size() + kPiece - 1) / kPiece, [&](std::size_t piece) {
    std::size_t at = piece * kPiece;
    const std::size_t end = std::min(out.size(), at + kPiece);
    while (at < end) {
      const ssize_t got =
          ::pread(file, out.data() + at, end - at, static_cast<off_t>(offset + at));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw FileError(errno, path);
      if (got == 0) {
        // Not offset + at: another thread's piece may be the first that lies behind the end.
        struct stat now {};
        const std::uint64_t size =
            ::fstat(file, &now) == 0 ? static_cast<std::uint64_t>(now.st_size) : offset + at;
        throw FormatError("truncated: expected " + std::to_string(offset + out.size()) +
                              " bytes, got " + std::to_string(size),
                          path, size);
      }
      at += static_cast<std::size_t>(got);
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
