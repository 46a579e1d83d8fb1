#include "stores/chunks.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "error.hpp"

namespace stepwell {
namespace {

constexpr std::size_t kReserve = std::size_t{1} << 20;

}  // namespace

Chunks::Chunks(std::string folder, std::uint32_t first)
    : folder_(std::move(folder)),
      first_(first),
      slots_(std::make_unique<std::atomic<const Mapping*>[]>(kMax)) {
  struct stat found{};
  if (lstat(folder_.c_str(), &found) == 0 && !S_ISDIR(found.st_mode))
    throw FormatError(S_ISLNK(found.st_mode) ? "expected a folder, got a link" : "expected a folder, got something else",
                      folder_, 0);
}

Chunks::~Chunks() {
  for (std::uint32_t i = 0; i < kMax; ++i)
    for (const Mapping* map = slots_[i].load(); map;) {
      munmap(map->base, map->reserved);
      const Mapping* older = map->older;
      delete map;
      map = older;
    }
}

std::string Chunks::path_of(std::uint32_t id) const {
  return folder_ + "/" + std::to_string(id) + ".zr";
}

std::pair<std::string, std::uint64_t> Chunks::find(const std::byte* at) const {
  for (std::uint32_t i = 0; i < kMax; ++i)
    for (const Mapping* map = slots_[i].load(std::memory_order_acquire); map; map = map->older)
      if (at >= map->base && at < map->base + map->reserved)
        return {path_of(first_ + i), static_cast<std::uint64_t>(at - map->base)};
  return {};
}

std::span<const std::byte> Chunks::map(std::uint32_t id, std::uint64_t end) {
  const std::string path = path_of(id);
  if (id < first_ || id - first_ >= kMax)
    throw FormatError("chunk " + std::to_string(id) + ": expected ids from " +
                          std::to_string(first_) + " to " + std::to_string(first_ + kMax - 1),
                      path, 0);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0 && errno == ENOENT) throw ChunkMissing("the chunk is missing", path, 0);
  if (file < 0 && errno == ELOOP) throw FormatError("expected a regular file, got a link", path, 0);
  if (file < 0) throw FileError(errno, path);
  struct stat found{};
  if (fstat(file, &found) != 0) {
    const int code = errno;
    close(file);
    throw FileError(code, path);
  }
  if (!S_ISREG(found.st_mode)) {
    close(file);
    throw FormatError("expected a regular file, got something else", path, 0);
  }
  const auto size = static_cast<std::size_t>(found.st_size);
  if (size < end) {
    close(file);
    throw FormatError("truncated: expected at least " + std::to_string(end) + " bytes, got " +
                          std::to_string(size),
                      path, size);
  }
  auto& slot = slots_[id - first_];
  const Mapping* older = slot.load(std::memory_order_acquire);
  if (older && older->reserved >= size) {
    close(file);
    // Never smaller: others may have been told what is there.
    std::size_t known = older->size.load();
    while (known < size && !older->size.compare_exchange_weak(known, size)) {
    }
    return {older->base, older->size.load()};
  }
  const std::size_t reserved = std::max<std::size_t>(std::bit_ceil(size + 1), kReserve);
  void* const base = mmap(nullptr, reserved, PROT_READ, MAP_SHARED, file, 0);
  const int code = errno;
  close(file);
  if (base == MAP_FAILED) throw FileError(code, path);
  auto* made = new Mapping{static_cast<std::byte*>(base), reserved, size, older};
  // Another thread may have mapped it meanwhile; both mappings stay.
  while (!slot.compare_exchange_weak(made->older, made, std::memory_order_acq_rel)) {
  }
  return {made->base, size};
}

}  // namespace stepwell
