// Mapped rows that are not in memory: many pages asked of the disk at a time, before the first is touched.
#pragma once

#include <atomic>
#include <cstddef>
#include <ctime>
#include <memory>
#include <span>

#include "files/checked.hpp"
#include "reader.hpp"

namespace stepwell {

// Whether reads of some mapped files have met the disk lately. While none has, rows cost a look at the clock; from the
// first that did, all are asked for ahead, until enough of them were there. Safe to use from any number of threads.
class Cold {
 public:
  bool is_cold() const { return cold_.load(std::memory_order_relaxed); }

  // Asks for the pages of at(0), at(1), … at(count - 1), stretches of mapped memory, without waiting for any.
  template <class At>
  void ask(std::size_t count, At&& at) const {
    const long before = reads();
    ask_alone(count, at);
    settle(count, before);
  }
  // The same, which says nothing of whether it is still cold.
  template <class At>
  void ask_alone(std::size_t count, At&& at) const {
    std::span<const std::byte> asked;
    for (std::size_t i = 0; i < count; ++i) ask_one(at(i), asked);
  }

  // Asks for all pages of a stretch, one behind the other.
  static void ask_whole(std::span<const std::byte> memory);

  // Calls read(begin, end) for parts of `count` rows. Where the first of them met the disk, ask(begin, end) is called
  // before the others are read.
  template <class Read, class Ask>
  void watch(std::size_t count, Read&& read, Ask&& ask) const {
    if (is_cold()) return read(std::size_t{0}, count);
    const std::size_t first = count < 8 * kProbe ? count : kProbe;
    const std::int64_t begun = now();
    read(std::size_t{0}, first);
    if (now() - begun > kLong && met_disk()) {
      cold_.store(true, std::memory_order_relaxed);
      if (first < count) ask(first, count);
    }
    if (first < count) read(first, count);
  }

  // Calls read(), for which at(0) … at(count - 1) are asked for before while it is cold.
  template <class Read, class At>
  void read_all(std::size_t count, Read&& read, At&& at) const {
    if (is_cold()) {
      ask(count, at);
      return read();
    }
    watch(1, [&](std::size_t, std::size_t) { read(); }, [](std::size_t, std::size_t) {});
  }

 private:
  static constexpr std::size_t kProbe = 32;
  // Nanoseconds in which so many rows are read from memory; the disk takes longer for one.
  static constexpr std::int64_t kLong = 20'000;

  static std::int64_t now();
  static long reads();
  static bool met_disk();
  static void ask_one(std::span<const std::byte> memory, std::span<const std::byte>& asked);
  void settle(std::size_t count, long before) const;

  mutable std::atomic<bool> cold_{true};
  mutable std::atomic<std::size_t> quiet_{0};  // rows that were asked for and there
};

// Reads as `base` does, rows of `stride` bytes that lie in `memory` one behind the other, a mapping that lives as long
// as `base`. Of a row, bytes `from` to `to` are read; with `blocks`, which are of this memory, all of the blocks that
// have them, until these were checked. Readers of one store have one `cold`.
ReaderPtr cold_reader(ReaderPtr base, std::span<const std::byte> memory, std::size_t stride, std::size_t from,
                      std::size_t to, std::shared_ptr<const CheckedBlocks> blocks, std::shared_ptr<const Cold> cold);

}  // namespace stepwell
