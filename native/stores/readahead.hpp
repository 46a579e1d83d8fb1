// Mapped files brought into memory ahead of a cursor, and given back behind it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "files/checked.hpp"

namespace stepwell {

// Part of a mapped file that is read from its beginning to its end.
struct Stretch {
  std::span<const std::byte> memory;
  std::string path;
  std::uint64_t begin;  // of the memory, in its file
  std::shared_ptr<const CheckedBlocks> blocks{};  // of the memory, where it has checksums
};

// Stretches one after another, as one run of bytes. A thread stays up to `window` bytes ahead of what was asked for last
// when it meets the disk, and a few MiB when it does not, or callers do other things for long: where the page cache has
// everything and they come at once it rests, for it would only take time from them. A second thread compares what was
// brought, and nobody has come to yet, with its checksums: while the first one waits for the disk.
class Readahead {
 public:
  // `mapped`: bytes that were waited for can be read without a page fault. Otherwise those that the page
  // cache has may be left to whoever reads them. Nobody reads the first `begin` bytes.
  Readahead(std::vector<Stretch> stretches, std::size_t window, bool mapped, std::uint64_t begin = 0);
  ~Readahead();
  Readahead(const Readahead&) = delete;
  Readahead& operator=(const Readahead&) = delete;

  // What a thread had of the disk when it was here last.
  struct Watch {
    long reads = -1;
  };

  // Waits until the bytes up to `end`, where the window begins, are in memory; those before
  // `done_with` may be given back. Throws FormatError when a file has become shorter. Call without the
  // GIL, each thread with its own watch.
  void wait(std::uint64_t done_with, std::uint64_t end, Watch& watch);

 private:
  void run();
  void run_checks();
  std::uint64_t in_memory() const;
  void bring_claimed(std::uint64_t begin, std::uint64_t end);
  void bring(std::uint64_t begin, std::uint64_t end);
  void check(std::uint64_t begin, std::uint64_t end);
  void give_back(std::uint64_t enough);
  void unmap(std::uint64_t begin, std::uint64_t end);
  template <class Work>
  void each_part(std::uint64_t begin, std::uint64_t end, Work&& work);

  std::vector<Stretch> stretches_;
  std::vector<std::uint64_t> ends_;
  std::uint64_t total_ = 0;
  std::uint64_t window_;
  std::uint64_t first_;  // how far it opens where the page cache has everything
  std::uint64_t reach_;  // the window so far: it opens when the disk is met
  bool mapped_;
  int process_;

  struct Wakes {
    std::mutex mutex;
    std::condition_variable work;  // for the thread: there may be something to bring
    std::condition_variable done;  // for callers: something was brought
    std::condition_variable checks;  // for the second thread: there may be something to compare
  };
  std::unique_ptr<Wakes> wakes_ = std::make_unique<Wakes>();
  std::uint64_t wanted_ = 0;      // bytes the thread may bring
  std::uint64_t claimed_ = 0;     // bytes that are in memory, or being brought by someone
  std::vector<std::uint64_t> under_way_;  // where each that is being brought begins
  std::uint64_t checked_ = 0;     // bytes that were compared with their checksums, or that somebody has come to
  std::uint64_t done_with_ = 0;   // bytes that may be given back
  std::uint64_t given_back_ = 0;
  std::uint64_t undelayed_ = 0;   // bytes since the disk was waited for
  std::chrono::steady_clock::time_point left_{};  // when a caller was here last
  bool asleep_ = false;           // until it is called
  bool stop_ = false;
  std::unique_ptr<std::thread> thread_, checker_;
};

}  // namespace stepwell
