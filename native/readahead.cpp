#include "readahead.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "error.hpp"
#include "guard.hpp"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace stepwell {
namespace {

constexpr std::uint64_t kStep = std::uint64_t{1} << 20;

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

// The system has no such call: every page is touched.
void touch(std::span<const std::byte> memory, const std::string& path) {
  guarded(memory, path, [&] {
    for (std::size_t at = 0; at < memory.size(); at += page_size())
      (void)*static_cast<const volatile std::byte*>(memory.data() + at);
  });
}

}  // namespace

Readahead::Readahead(std::vector<Stretch> stretches, std::size_t window,
                     std::shared_ptr<const void> keep)
    : stretches_(std::move(stretches)), window_(window), keep_(std::move(keep)), process_(getpid()) {
  for (const Stretch& stretch : stretches_) ends_.push_back(total_ += stretch.memory.size());
  wanted_ = std::min<std::uint64_t>(window_, total_);
  thread_ = std::thread([this] { run(); });
}

Readahead::~Readahead() {
  if (getpid() != process_) {
    thread_.detach();  // it does not exist here
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Readahead::wait(std::uint64_t begin, std::uint64_t end) {
  end = std::min(end, total_);
  if (getpid() != process_) return bring(begin, end);  // forked: nobody works ahead
  {
    std::unique_lock lock(mutex_);
    wanted_ = std::max(wanted_, std::min(total_, std::max(end, begin + window_)));
    changed_.notify_all();
    changed_.wait(lock, [&] { return brought_ >= end || error_; });
    if (brought_ < end && error_) std::rethrow_exception(error_);
  }
  give_back(begin);
}

void Readahead::run() {
  std::uint64_t at = 0;
  advise(0, std::min<std::uint64_t>(window_, total_));
  for (;;) {
    std::uint64_t wanted;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || at < wanted_; });
      if (stop_) return;
      wanted = wanted_;
    }
    const std::uint64_t end = std::min(wanted, at + kStep);
    try {
      bring(at, end);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      changed_.notify_all();
      return;
    }
    at = end;
    // What the window reaches to next is asked of the disk now, and found in memory later.
    advise(std::min(total_, at + window_ - std::min<std::uint64_t>(kStep, window_)), std::min(total_, at + window_));
    {
      const std::lock_guard lock(mutex_);
      brought_ = at;
    }
    changed_.notify_all();
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
    while (madvise(pages.data(), pages.size(), MADV_POPULATE_READ) != 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      if (errno == EFAULT || errno == ENOMEM)
        throw FormatError("the file became shorter while it was read", of.path, at);
      return touch(memory, of.path);
    }
  });
}

void Readahead::advise(std::uint64_t begin, std::uint64_t end) {
  each_part(begin, end, [](const Stretch& of, std::uint64_t at, std::uint64_t bytes) {
    const auto pages = pages_of(of.memory.subspan(at, bytes));
    madvise(pages.data(), pages.size(), MADV_WILLNEED);
  });
}

void Readahead::give_back(std::uint64_t end) {
  // In large steps: every one is a call to the system. A page that is shared with what comes stays.
  if (end < given_back_ + std::max<std::uint64_t>(window_ / 4, kStep) && end < total_) return;
  each_part(given_back_, end, [](const Stretch& of, std::uint64_t at, std::uint64_t bytes) {
    auto pages = pages_of(of.memory.subspan(at, bytes));
    if (at + bytes < of.memory.size()) pages = pages.first(pages.size() - page_size());
    if (!pages.empty()) madvise(pages.data(), pages.size(), MADV_DONTNEED);
  });
  given_back_ = end;
}

}  // namespace stepwell
