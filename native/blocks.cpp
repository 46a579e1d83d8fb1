#include "blocks.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <new>

namespace stepwell {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kMax = SIZE_MAX / 4;  // nothing larger exists; sums stay in range

std::size_t round_up(std::size_t value, std::size_t step) { return (value + step - 1) / step * step; }

BlockRef map_huge(std::size_t bytes) {
  // mmap aligns to small pages; ask for one huge page more and give the edges back.
  const std::size_t whole = bytes + kHugePage;
  void* raw = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  const auto begin = reinterpret_cast<std::uintptr_t>(raw);
  const auto aligned = round_up(begin, kHugePage);
  if (aligned > begin) munmap(raw, aligned - begin);
  if (begin + whole > aligned + bytes)
    munmap(reinterpret_cast<void*>(aligned + bytes), begin + whole - aligned - bytes);
  auto* data = reinterpret_cast<std::byte*>(aligned);
#ifdef MADV_HUGEPAGE
  madvise(data, bytes, MADV_HUGEPAGE);  // advice: without it everything still works
#endif
  return {data, [bytes](std::byte* p) { munmap(p, bytes); }};
}

// One lock for every pool, so that fork can be made safe in one place: it is held across
// the fork, and both sides continue with consistent lists.
std::mutex& pools_lock() {
  static std::mutex* lock = [] {
    static std::mutex made;
    pthread_atfork([] { pools_lock().lock(); }, [] { pools_lock().unlock(); },
                   [] { pools_lock().unlock(); });
    return &made;
  }();
  return *lock;
}

}  // namespace

BlockRef allocate(std::size_t bytes) {
  if (bytes > kMax) throw std::bad_alloc();
  if (bytes >= kHugePage) return map_huge(round_up(bytes, kHugePage));
  void* data = std::aligned_alloc(kPage, round_up(bytes + (bytes == 0), kPage));
  if (data == nullptr) throw std::bad_alloc();
  return {static_cast<std::byte*>(data), [](std::byte* p) { std::free(p); }};
}

std::shared_ptr<BlockPool> BlockPool::make(std::size_t keep_bytes) {
  return std::shared_ptr<BlockPool>(new BlockPool(keep_bytes));
}

BlockPool::~BlockPool() = default;

BlockRef BlockPool::take(std::size_t bytes) {
  if (bytes > kMax) throw std::bad_alloc();
  Idle found{nullptr, 0};
  {
    std::lock_guard guard(pools_lock());
    const auto fits = std::ranges::find_if(idle_, [&](const Idle& block) {
      // A much larger block would waste memory that a large batch wants.
      return block.bytes >= bytes && block.bytes <= 2 * bytes + 16 * kPage;
    });
    if (fits != idle_.end()) {
      idle_bytes_ -= fits->bytes;
      found = std::move(*fits);
      idle_.erase(fits);
    }
  }
  if (!found.memory) {
    const std::size_t room = round_up(bytes + (bytes == 0), bytes < kHugePage ? kPage : kHugePage);
    found = {allocate(room), room};
  }
  std::byte* data = found.memory.get();
  return {data, [pool = shared_from_this(), block = std::move(found)](std::byte*) mutable {
            pool->give_back(std::move(block));
          }};
}

void BlockPool::give_back(Idle block) {
  std::list<Idle> dropped;  // freed after the lock: unmapping is slow
  std::lock_guard guard(pools_lock());
  idle_bytes_ += block.bytes;
  idle_.push_front(std::move(block));
  while (idle_bytes_ > keep_bytes_) {
    idle_bytes_ -= idle_.back().bytes;
    dropped.splice(dropped.begin(), idle_, std::prev(idle_.end()));
  }
}

std::size_t BlockPool::idle_bytes() const {
  std::lock_guard guard(pools_lock());
  return idle_bytes_;
}

const std::shared_ptr<BlockPool>& shared_blocks() {
  // Never destroyed: arrays that Python still holds at exit return their blocks to it.
  static const auto* pool = new std::shared_ptr<BlockPool>(BlockPool::make(std::size_t{256} << 20));
  return *pool;
}

}  // namespace stepwell
