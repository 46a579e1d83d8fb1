#include "files/guard.hpp"

#include <signal.h>
#include <time.h>

#include <atomic>
#include <mutex>

#include "error.hpp"

namespace stepwell::detail {
namespace {

struct sigaction before;
std::atomic<bool> given_up{false};

// The page behind the end of a file was touched. If it is one that is being read under a guard, the
// reader is told; anything else is none of our business.
void on_bus_error(int number, siginfo_t* info, void*) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  for (Guard* each = guard; each; each = each->outer) {
    // As numbers: some guards are for all of the memory.
    if (reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(each->memory.data()) >=
        each->memory.size())
      continue;
    each->fault = at;
    siglongjmp(each->back, 1);
  }
  // The instruction is tried again, and meets whoever was here before us; who then hands it back, as
  // faulthandler does, wants the process to end.
  if (given_up.exchange(true))
    signal(number, SIG_DFL);
  else
    sigaction(number, &before, nullptr);
}

}  // namespace

thread_local Guard* guard = nullptr;

void install_guard() {
  // The system call costs more than reading a row: once in some milliseconds is enough to notice another's handler.
  thread_local timespec looked{};
  timespec tick{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &tick);
  if (tick.tv_nsec == looked.tv_nsec && tick.tv_sec == looked.tv_sec) return;
  looked = tick;
  struct sigaction now{};
  sigaction(SIGBUS, nullptr, &now);
  if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_bus_error) return;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  // Not blocked while it runs: it may be left by a jump.
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, &now);
  if (!(now.sa_flags & SA_SIGINFO) || now.sa_sigaction != on_bus_error) before = now;
}

void throw_cut(const Guard& guard, const std::string& path) {
  throw_cut(path, guard.begin + static_cast<std::uint64_t>(guard.fault - guard.memory.data()));
}

void throw_cut(const std::string& path, std::uint64_t offset) {
  throw FormatError("truncated while it was read", path, offset);
}

}  // namespace stepwell::detail
