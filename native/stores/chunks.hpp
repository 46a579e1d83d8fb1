// The chunk files of a record store, mapped as they are needed and again as they grow.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "error.hpp"

namespace stepwell {

// There is no file of this chunk.
struct ChunkMissing : FormatError {
  using FormatError::FormatError;
};

// Safe from any thread and across fork: nothing in it waits. What was mapped stays mapped as long as
// this lives, whatever happens to the names of the files.
class Chunks {
 public:
  // Chunks with ids from `first` on, in `folder`. Throws FormatError when that is none, or a link to one.
  Chunks(std::string folder, std::uint32_t first);
  ~Chunks();
  Chunks(const Chunks&) = delete;
  Chunks& operator=(const Chunks&) = delete;

  // The bytes of a chunk, at least `end` of them. Throws FormatError when it has fewer, or is none
  // of this store's, and FileError when the system refuses.
  std::span<const std::byte> at(std::uint32_t id, std::uint64_t end) {
    if (id >= first_ && id - first_ < kMax) [[likely]]
      if (const Mapping* map = slots_[id - first_].load(std::memory_order_acquire)) [[likely]]
        if (const std::size_t size = map->size.load(std::memory_order_relaxed); size >= end) [[likely]]
          return {map->base, size};
    return map(id, end);
  }

  std::string path_of(std::uint32_t id) const;
  // The path and offset of what is mapped at an address; an empty path for anything else.
  std::pair<std::string, std::uint64_t> find(const std::byte* at) const;

 private:
  // More is mapped than the file has, so that it can grow without being mapped again.
  struct Mapping {
    std::byte* base;
    std::size_t reserved;
    mutable std::atomic<std::size_t> size;  // of the file, as far as is known
    const Mapping* older;
  };

  // The system maps no more files than that, unless it is told to.
  static constexpr std::uint32_t kMax = 1 << 16;

  std::span<const std::byte> map(std::uint32_t id, std::uint64_t end);

  std::string folder_;
  std::uint32_t first_;
  std::unique_ptr<std::atomic<const Mapping*>[]> slots_;
};

}  // namespace stepwell
