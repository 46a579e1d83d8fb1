// Memory for batches and tables: huge pages where they help, recycled where it pays.
#pragma once

#include <cstddef>
#include <list>
#include <memory>

namespace stepwell {

// A block of memory that goes back where it came from when the last copy of this dies.
using BlockRef = std::shared_ptr<std::byte>;

// Fresh memory, 64-byte aligned (2 MiB aligned and advised for huge pages from 2 MiB up),
// its content unspecified, unmapped with the last reference. Throws std::bad_alloc.
BlockRef allocate(std::size_t bytes);

// Blocks of the sizes batches have, kept when they are returned, so that a loop of takes
// touches the same warm pages again. Safe from any thread and across fork.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  // Keeps at most `keep_bytes` of unused memory; the least recently used goes first.
  static std::shared_ptr<BlockPool> make(std::size_t keep_bytes);
  ~BlockPool();

  // A block of at least `bytes`. It returns to this pool, which lives as long as its blocks.
  BlockRef take(std::size_t bytes);

  std::size_t idle_bytes() const;

 private:
  struct Idle {
    BlockRef memory;
    std::size_t bytes;
  };

  explicit BlockPool(std::size_t keep_bytes) : keep_bytes_(keep_bytes) {}
  void give_back(Idle block);

  std::size_t keep_bytes_;
  std::size_t idle_bytes_ = 0;
  std::list<Idle> idle_;  // most recently returned first
};

// The process's pool. Keeps up to 256 MiB.
const std::shared_ptr<BlockPool>& shared_blocks();

}  // namespace stepwell
