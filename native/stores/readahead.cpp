#include "stores/readahead.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "error.hpp"
#include "files/guard.hpp"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace stepwell {
namespace {

constexpr std::uint64_t kStep = std::uint64_t{1} << 20;
// Of what is compared at a time, so that a caller who comes to it meanwhile compares little of it again.
constexpr std::uint64_t kCheckStep = std::uint64_t{1} << 18;
// The first window, and what has to come without the disk before the thread rests.
constexpr std::uint64_t kFirst = std::uint64_t{8} << 20;
// What may be behind at most, while nothing meets the disk.
constexpr std::uint64_t kBehind = std::uint64_t{32} << 20;
constexpr std::chrono::microseconds kLook{500};
constexpr int kLooks = 40;
// A caller that does other things for so long leaves a core to the thread.
constexpr std::chrono::microseconds kAway{1000};
constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;

std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// The pages that have a byte of `memory`.
std::span<std::byte> pages_of(std::span<const std::byte> memory) {
  const auto mask = ~(page_size() - 1);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data()) & mask;
  const auto end = reinterpret_cast<std::uintptr_t>(memory.data() + memory.size() + page_size() - 1) & mask;
  return {reinterpret_cast<std::byte*>(begin), end - begin};
}

// Whether this thread has waited for a page of a file, or had the disk read one, since it last asked.
bool met_disk([[maybe_unused]] long& before) {
#ifdef RUSAGE_THREAD
  struct rusage used;
  getrusage(RUSAGE_THREAD, &used);
  const long now = used.ru_majflt + used.ru_inblock;
  return std::exchange(before, now) != now;
#else
  return true;
#endif
}

// Where the system has no such call, or found a page that is not there: every page is touched.
void touch(std::span<const std::byte> memory, const std::string& path, std::uint64_t begin) {
  const auto work = [&] {
    for (std::size_t at = 0; at < memory.size(); at += page_size())
      (void)*static_cast<const volatile std::byte*>(memory.data() + at);
  };
  guarded(memory, path, work, begin);
}

}  // namespace

Readahead::Readahead(std::vector<Stretch> stretches, std::size_t window, bool mapped, std::uint64_t begin)
    : stretches_(std::move(stretches)),
      window_(window),
      first_(std::min<std::uint64_t>(window, kFirst)),
      reach_(first_),
      mapped_(mapped),
      process_(getpid()) {
  for (const Stretch& stretch : stretches_) ends_.push_back(total_ += stretch.memory.size());
  claimed_ = checked_ = done_with_ = given_back_ = std::min(begin, total_);
  wanted_ = std::min(claimed_ + reach_, total_);
  try {
    thread_ = std::make_unique<std::thread>([this] { run(); });
    if (std::ranges::any_of(stretches_, [](const Stretch& of) { return of.blocks && !of.blocks->is_done(); }))
      checker_ = std::make_unique<std::thread>([this] { run_checks(); });
  } catch (const std::system_error&) {
    // The system gives no more threads; callers then bring and check everything themselves.
  }
}

Readahead::~Readahead() {
  if (getpid() != process_) {
    (void)thread_.release();  // they do not exist here, and their handles may be other threads' by now
    (void)checker_.release();
    (void)wakes_.release();  // to destroy them would be to wait for the threads
    return;
  }
  {
    const std::lock_guard lock(wakes_->mutex);
    stop_ = true;
  }
  wakes_->work.notify_one();
  wakes_->checks.notify_one();
  if (thread_) thread_->join();
  if (checker_) checker_->join();
  if (total_ > kBehind) unmap(given_back_, std::max(claimed_, given_back_));
}

// Bytes before this are in memory. Call with the lock.
std::uint64_t Readahead::in_memory() const {
  return under_way_.empty() ? claimed_ : std::ranges::min(under_way_);
}

void Readahead::wait(std::uint64_t done_with, std::uint64_t end, Watch& watch) {
  end = std::min(end, total_);
  if (getpid() != process_) return bring(done_with, end);  // forked: nobody works ahead
  const bool delayed = met_disk(watch.reads);
  const auto now = std::chrono::steady_clock::now();
  std::uint64_t from;
  bool rests, wake;
  {
    const std::lock_guard lock(wakes_->mutex);
    if (delayed) undelayed_ = 0;
    rests = undelayed_ >= first_ && now - left_ < kAway;
    if (!rests) wanted_ = std::max(wanted_, std::min(total_, end + reach_));
    if (rests && !mapped_) claimed_ = std::max(claimed_, end);
    checked_ = std::max(checked_, end);
    done_with_ = std::max(done_with_, done_with);
    from = std::max(claimed_, done_with);
    wake = !rests && (asleep_ || from < end);
    if (from < end) {
      claimed_ = end;
      under_way_.push_back(from);
    }
  }
  if (wake) wakes_->work.notify_one();
  // Not left to the thread: what is in the page cache is there sooner than a thread is awake.
  if (from < end) bring_claimed(from, end);
  {
    std::unique_lock lock(wakes_->mutex);
    wakes_->done.wait(lock, [&] { return std::ranges::none_of(under_way_, [&](auto at) { return at < end; }); });
    from = claimed_;
    left_ = std::chrono::steady_clock::now();
  }
  if (from < end) bring(done_with, end);  // somebody could not; this throws what is wrong, if it still is
  // Where the thread does not come to it. While it rests little is ahead, and more may be behind: each call holds up
  // the other threads.
  give_back(rests ? std::max({first_, kStep, std::min(window_ / 2, kBehind)}) : 2 * first_ + kStep);
}

// Brings bytes that the caller has claimed. Throws when they are not there; they are then claimed no more.
void Readahead::bring_claimed(std::uint64_t begin, std::uint64_t end) {
  const auto is_done = [&] {
    under_way_.erase(std::ranges::find(under_way_, begin));
    wakes_->done.notify_all();
    if (checked_ < in_memory()) wakes_->checks.notify_one();
  };
  try {
    bring(begin, end);
  } catch (...) {
    const std::lock_guard lock(wakes_->mutex);
    claimed_ = std::min(claimed_, begin);
    is_done();
    throw;
  }
  const std::lock_guard lock(wakes_->mutex);
  is_done();
}

void Readahead::run() {
  // In large steps: every one is a call to the system.
  const std::uint64_t step = std::max(first_ / 4, kStep);
  long reads = -1;
  for (;;) {
    std::uint64_t at, end;
    {
      std::unique_lock lock(wakes_->mutex);
      const auto called = [&] {
        return stop_ || claimed_ < wanted_ || done_with_ >= given_back_ + step;
      };
      // For a while it looks by itself: to wake a thread takes the caller longer than all the rest.
      for (int looks = 0; looks < kLooks && undelayed_ < first_ && !called(); ++looks)
        wakes_->work.wait_until(lock, std::chrono::system_clock::now() + kLook);
      asleep_ = true;
      wakes_->work.wait(lock, called);
      asleep_ = false;
      if (stop_) return;
      at = claimed_;
      end = std::max(at, std::min(wanted_, at + kStep));
      if (at < end) {
        claimed_ = end;
        under_way_.push_back(at);
      }
    }
    if (at < end) {
      try {
        bring_claimed(at, end);
      } catch (...) {
        return;  // who comes to it finds the same
      }
      const bool delayed = met_disk(reads);
      std::uint64_t gone;
      {
        const std::lock_guard lock(wakes_->mutex);
        undelayed_ = delayed ? 0 : undelayed_ + (end - at);
        if (delayed) reach_ = std::min<std::uint64_t>(window_, 2 * reach_);
        gone = std::min(given_back_, end);
      }
      if (at < gone) unmap(at, gone);  // it was overtaken
    }
    give_back(step);
  }
}

void Readahead::run_checks() {
  for (;;) {
    std::uint64_t from, to;
    {
      std::unique_lock lock(wakes_->mutex);
      wakes_->checks.wait(lock, [&] { return stop_ || checked_ < in_memory(); });
      if (stop_) return;
      from = checked_;
      to = checked_ = std::min(in_memory(), from + kCheckStep);
    }
    check(from, to);
  }
}

template <class Work>
void Readahead::each_part(std::uint64_t begin, std::uint64_t end, Work&& work) {
  auto k = static_cast<std::size_t>(std::ranges::upper_bound(ends_, begin) - ends_.begin());
  while (begin < end) {
    const std::uint64_t first = k ? ends_[k - 1] : 0, last = std::min(ends_[k], end);
    if (last > begin) work(stretches_[k], begin - first, last - begin);
    begin = last;
    ++k;
  }
}

void Readahead::bring(std::uint64_t begin, std::uint64_t end) {
  each_part(begin, end, [](const Stretch& of, std::uint64_t at, std::uint64_t bytes) {
    const auto memory = of.memory.subspan(at, bytes);
    const auto pages = pages_of(memory);
    // Not preceded by MADV_WILLNEED: measured on ext4 and Linux 6.18, that took twice as long as what the
    // system reads ahead by itself, and left pages that were nine times slower to map, then and later
    // (in smaller folios, it seems).
    while (madvise(pages.data(), pages.size(), MADV_POPULATE_READ) != 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      return touch(memory, of.path, of.begin + at);
    }
  });
}

void Readahead::check(std::uint64_t begin, std::uint64_t end) {
  try {
    each_part(begin, end, [](const Stretch& of, std::uint64_t at, std::uint64_t bytes) {
      if (of.blocks) of.blocks->check(at, at + bytes);
    });
  } catch (...) {
    // Who comes to it finds the same.
  }
}

void Readahead::give_back(std::uint64_t enough) {
  std::uint64_t begin, end;
  {
    const std::lock_guard lock(wakes_->mutex);
    if (done_with_ < given_back_ + enough) return;
    begin = given_back_;
    end = given_back_ = done_with_;
  }
  unmap(begin, end);
}

void Readahead::unmap(std::uint64_t begin, std::uint64_t end) {
  // Whole huge pages: of one that goes by half, the other half is mapped again page by page.
  const auto huge = [](const std::byte* at) {
    return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(at) & ~(kHugePage - 1));
  };
  each_part(begin, end, [&](const Stretch& of, std::uint64_t at, std::uint64_t bytes) {
    const auto pages = pages_of(of.memory);
    const auto* const last = of.memory.data() + at + bytes;
    std::byte* const from = std::max(huge(of.memory.data() + at), pages.data());
    std::byte* const to = at + bytes < of.memory.size() ? huge(last) : pages.data() + pages.size();
    if (to > from) madvise(from, static_cast<std::size_t>(to - from), MADV_DONTNEED);
  });
}

}  // namespace stepwell
