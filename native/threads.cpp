#include "threads.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string>
#include <system_error>

#ifdef __linux__
#include <sched.h>
#endif
#include <pthread.h>
#include <unistd.h>

namespace stepwell {
namespace {

// Long enough to catch the next take of a tight loop, short enough not to be seen in a profile.
// By the clock: a pause takes a processor 40 cycles, or 140.
constexpr std::int64_t kSpin = 60'000;
constexpr int kPauses = 16;  // between two looks at the clock
constexpr int kPatience = 2000;  // pauses for a helper that is at its last piece

std::int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

#ifdef __linux__
// A small file's content, empty when it cannot be read. Not a stream: a second copy of the
// C++ library in the process, as statically linked modules bring, breaks those.
std::string content(const std::string& path) {
  std::string text(4096, '\0');
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return {};
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

// Quota divided by period, 0 when there is none ("max 100000" in version 2, -1 in version 1).
double quota_v2(const std::string& folder) {
  double quota = 0, period = 0;
  const int read = std::sscanf(content(folder + "/cpu.max").c_str(), "%lf %lf", &quota, &period);
  return read == 2 && period > 0 ? quota / period : 0;
}

double quota_v1(const std::string& folder) {
  const double quota = std::atof(content(folder + "/cpu.cfs_quota_us").c_str());
  const double period = std::atof(content(folder + "/cpu.cfs_period_us").c_str());
  return quota > 0 && period > 0 ? quota / period : 0;
}

// The tightest CPU quota on the way from this process's cgroup to the root, 0 for none.
double cgroup_quota() {
  double tightest = 0;
  auto consider = [&](double quota) {
    if (quota > 0 && (tightest == 0 || quota < tightest)) tightest = quota;
  };
  const std::string lines = content("/proc/self/cgroup");
  for (std::size_t begin = 0, end; begin < lines.size(); begin = end + 1) {
    end = std::min(lines.find('\n', begin), lines.size());
    const std::string line = lines.substr(begin, end - begin);
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    const bool v2 = controllers.empty();
    if (!v2 && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    // Inside a container the path may name a folder only the host sees; the loop then
    // finds the container's own limits at the mount's root.
    for (;;) {
      consider(v2 ? quota_v2("/sys/fs/cgroup" + path) : quota_v1("/sys/fs/cgroup/cpu" + path));
      const auto slash = path.rfind('/');
      if (slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return tightest;
}
#endif

std::atomic<ThreadPool*> process_pool{nullptr};

}  // namespace

unsigned usable_cores() {
  unsigned cores = std::max(1u, std::thread::hardware_concurrency());
#ifdef __linux__
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0)
    cores = std::max(1, CPU_COUNT(&mask));
  static const double quota = cgroup_quota();  // a dozen files: read once
  if (quota > 0)
    cores = std::min(cores, std::max(1u, static_cast<unsigned>(std::ceil(quota))));
#endif
  return cores;
}

ThreadPool::ThreadPool(unsigned helpers) {
  threads_.reserve(helpers);
  try {
    for (unsigned i = 0; i < helpers; ++i) threads_.emplace_back([this] { help(); });
  } catch (const std::system_error&) {
    // The system gives no more threads; those that are there, or none, do as well.
  }
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  posted_.fetch_add(1);
  posted_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::share(Job& job, bool brief) {
  const bool alone = job.pieces < 2 || threads_.empty() || taken_.exchange(true);
  if (alone) {
    work_on(job);
  } else {
    const unsigned asleep = asleep_.load();
    const bool wake = asleep > 0 && (!brief || nanoseconds() - ended_.load() < kSpin);
    if (wake || asleep < threads_.size()) {
      job_.store(&job);
      posted_.fetch_add(1);
      if (wake) posted_.notify_all();
    }
    work_on(job);
    // A helper announces itself in inside_ before it reads job_ (all sequentially
    // consistent), so once job_ is null and inside_ is 0 nobody can reach `job` any more.
    job_.store(nullptr);
    for (int spins = 0; inside_.load() != 0; ++spins)
      spins < kPatience ? pause_cpu() : std::this_thread::yield();
    ended_.store(nanoseconds());
    taken_.store(false);
  }
  if (job.failed.load()) std::rethrow_exception(job.error);
}

void ThreadPool::work_on(Job& job) {
  while (!job.failed.load(std::memory_order_relaxed)) {
    const std::size_t i = job.next.fetch_add(1, std::memory_order_relaxed);
    if (i >= job.pieces) return;
    try {
      job.call(job.self, i);
    } catch (...) {
      if (!job.failed.exchange(true)) job.error = std::current_exception();
    }
  }
}

void ThreadPool::help() {
  std::uint32_t seen = 0;
  for (;;) {
    for (const auto end = nanoseconds() + kSpin; posted_.load() == seen && nanoseconds() < end;)
      for (int i = 0; i < kPauses && posted_.load() == seen; ++i) pause_cpu();
    if (posted_.load() == seen) {
      asleep_.fetch_add(1);
      posted_.wait(seen);
      asleep_.fetch_sub(1);
    }
    seen = posted_.load();
    if (stop_.load()) return;
    inside_.fetch_add(1);
    if (Job* job = job_.load()) work_on(*job);
    inside_.fetch_sub(1);
  }
}

ThreadPool& shared_pool() {
  static const int registered = pthread_atfork(
      nullptr, nullptr, [] { process_pool.store(nullptr); });  // the old one is left alone
  (void)registered;
  if (ThreadPool* pool = process_pool.load()) return *pool;
  auto made = std::make_unique<ThreadPool>(usable_cores() - 1);
  ThreadPool* expected = nullptr;
  if (process_pool.compare_exchange_strong(expected, made.get())) return *made.release();
  return *expected;
}

void share_out(std::size_t count, unsigned threads, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::atomic<std::size_t> failed{std::numeric_limits<std::size_t>::max()};
  std::mutex mutex;
  std::exception_ptr error;
  // Numbers are handed out in order, so everything below a failure has been begun.
  const auto loop = [&](std::size_t) {
    for (std::size_t i; (i = next.fetch_add(1)) < count && i < failed.load();) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed.load()) {
          failed = i;
          error = std::current_exception();
        }
      }
    }
  };
  if (threads <= 1 || count <= 1)
    loop(0);
  else
    shared_pool().run(std::min<std::size_t>(threads, count), loop);
  if (error) std::rethrow_exception(error);
}

}  // namespace stepwell
