// The cores this process may use, and a pool of helpers that shares short jobs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace stepwell {

// Cores the process may really use: the smaller of its affinity mask and its cgroup CPU
// quota (v1 or v2), never below 1.
unsigned usable_cores();

// Helpers that join a caller's loop. A job is a few tens of microseconds long, so helpers
// spin briefly for the next one before they sleep: waking a thread costs as much as the job. A
// short job is therefore not worth waking anybody for, unless its caller is in a loop: when it
// comes again before helpers would have fallen asleep, they are woken, and stay for the next.
class ThreadPool {
 public:
  // Up to `helpers` threads: as many as the system allows.
  explicit ThreadPool(unsigned helpers);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned helpers() const { return static_cast<unsigned>(threads_.size()); }

  // Calls work(i) once for every i in [0, pieces) and returns when all are done. The caller
  // works too; helpers that serve another caller are not waited for. The first exception
  // thrown by a piece is rethrown here; pieces not yet begun are then left out. A `brief` job
  // takes no longer than waking a helper does.
  template <class Work>
  void run(std::size_t pieces, Work&& work, bool brief = false) {
    using Callable = std::remove_reference_t<Work>;
    Job job{[](void* self, std::size_t i) { (*static_cast<Callable*>(self))(i); },
            const_cast<std::remove_const_t<Callable>*>(&work), pieces};
    share(job, brief);
  }

 private:
  struct Job {
    void (*call)(void*, std::size_t);
    void* self;
    std::size_t pieces;
    std::atomic<std::size_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error{};
  };

  void share(Job& job, bool brief);
  static void work_on(Job& job);
  void help();

  std::atomic<Job*> job_{nullptr};
  std::atomic<unsigned> inside_{0};      // helpers that may hold a pointer to the job
  std::atomic<unsigned> asleep_{0};
  std::atomic<std::uint32_t> posted_{0};  // counts jobs; what helpers wait on
  std::atomic<bool> taken_{false};        // a caller owns the helpers
  std::atomic<std::int64_t> ended_{0};    // when the last job did, in nanoseconds
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// The process's pool, usable_cores() - 1 helpers. Made on first use, and anew in a forked
// child, where the parent's threads do not exist.
ThreadPool& shared_pool();

// Calls work(i) for every i below `count` on up to `threads` threads of the shared pool. When
// some fail, the failure of the lowest i is thrown, whatever the number of threads.
void share_out(std::size_t count, unsigned threads, const std::function<void(std::size_t)>& work);

}  // namespace stepwell
