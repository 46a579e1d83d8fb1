#include "cold.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>

namespace stepwell {
namespace {

// What the system reads for one request, at least.
constexpr std::size_t kStretch = std::size_t{1} << 17;
// Rows that have to be there, one after another, for the disk to be done with.
constexpr std::size_t kQuiet = 256;

class ColdReader final : public Reader {
 public:
  ColdReader(ReaderPtr base, std::span<const std::byte> memory, std::size_t stride, std::size_t from, std::size_t to,
             std::shared_ptr<const CheckedBlocks> blocks, std::shared_ptr<const Cold> cold)
      : Reader(base->length(), {base->fields().begin(), base->fields().end()}),
        base_(std::move(base)),
        memory_(memory),
        stride_(stride),
        from_(from),
        to_(to),
        blocks_(std::move(blocks)),
        cold_(std::move(cold)) {
    is_made_of(*cold_);
  }

  bool holds(std::span<const std::byte> memory) const override { return base_->holds(memory); }

  void expect(std::span<const std::int64_t> rows) const override {
    const CheckedBlocks* const blocks = blocks_ && !blocks_->is_done() ? blocks_.get() : nullptr;
    cold_->ask(rows.size(), [&](std::size_t i) {
      std::size_t begin = static_cast<std::size_t>(rows[i]) * stride_ + from_, end = begin + to_ - from_;
      if (blocks) std::tie(begin, end) = blocks->unchecked_around(begin, end);
      return memory_.subspan(begin, end - begin);
    });
  }

  void fill(std::span<const std::int64_t> rows, std::span<const std::int64_t> slots,
            std::span<std::byte* const> outs) const override {
    cold_->watch(
        rows.size(),
        [&](std::size_t begin, std::size_t end) {
          if (begin == 0 && end == rows.size()) return base_->fill(rows, slots, outs);
          const std::size_t count = end - begin;
          if (!slots.empty()) return base_->fill(rows.subspan(begin, count), slots.subspan(begin, count), outs);
          std::vector<std::byte*> part(outs.begin(), outs.end());
          for (std::size_t f = 0; f < part.size(); ++f) part[f] += begin * fields()[f];
          base_->fill(rows.subspan(begin, count), {}, part);
        },
        [&](std::size_t begin, std::size_t end) { expect(rows.subspan(begin, end - begin)); });
  }

 private:
  ReaderPtr base_;
  std::span<const std::byte> memory_;
  std::size_t stride_, from_, to_;
  std::shared_ptr<const CheckedBlocks> blocks_;
  std::shared_ptr<const Cold> cold_;
};

}  // namespace

std::int64_t Cold::now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Blocks that the disk has been asked for by this thread.
long Cold::reads() {
#ifdef RUSAGE_THREAD
  struct rusage used{};
  getrusage(RUSAGE_THREAD, &used);
  return used.ru_inblock;
#else
  return 0;
#endif
}

// Whether this thread has waited for a page, or asked the disk for one, since it was here last.
bool Cold::met_disk() {
#ifdef RUSAGE_THREAD
  thread_local long before = 0;
  struct rusage used{};
  getrusage(RUSAGE_THREAD, &used);
  const long now = used.ru_majflt + used.ru_inblock;
  return std::exchange(before, now) != now;
#else
  return false;
#endif
}

void Cold::ask_one(std::span<const std::byte> memory, std::span<const std::byte>& asked) {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data()) & ~(page - 1);
  const auto end = reinterpret_cast<std::uintptr_t>(memory.data() + memory.size());
  const auto known = reinterpret_cast<std::uintptr_t>(asked.data());
  if (memory.empty() || (begin >= known && end <= known + asked.size())) return;
  asked = {reinterpret_cast<const std::byte*>(begin), (end - begin + page - 1) & ~(page - 1)};
  madvise(reinterpret_cast<void*>(begin), asked.size(), MADV_WILLNEED);
}

void Cold::ask_whole(std::span<const std::byte> memory) {
  std::span<const std::byte> asked;
  for (std::size_t at = 0; at < memory.size(); at += kStretch)
    ask_one(memory.subspan(at, std::min(kStretch, memory.size() - at)), asked);
}

void Cold::settle(std::size_t count, long before) const {
  if (reads() != before) {
    quiet_.store(0, std::memory_order_relaxed);
    cold_.store(true, std::memory_order_relaxed);
  } else if (quiet_.fetch_add(count, std::memory_order_relaxed) + count >= kQuiet) {
    quiet_.store(0, std::memory_order_relaxed);
    cold_.store(false, std::memory_order_relaxed);
  }
}

ReaderPtr cold_reader(ReaderPtr base, std::span<const std::byte> memory, std::size_t stride, std::size_t from,
                      std::size_t to, std::shared_ptr<const CheckedBlocks> blocks, std::shared_ptr<const Cold> cold) {
  std::size_t bytes;
  if (from > to || to > stride || __builtin_mul_overflow(static_cast<std::size_t>(base->length()), stride, &bytes) ||
      bytes > memory.size() || (blocks && blocks->size() != bytes))
    throw std::invalid_argument("the rows leave the memory");
  return std::make_shared<ColdReader>(std::move(base), memory, stride, from, to, std::move(blocks), std::move(cold));
}

}  // namespace stepwell
