#include "guard.hpp"

#include <signal.h>

#include <mutex>

#include "error.hpp"

namespace stepwell::detail {
namespace {

struct sigaction before;

// The page behind the end of a file was touched. If it is one that is being read under a guard, the
// reader is told; anything else is none of our business.
void on_bus_error(int number, siginfo_t* info, void* context) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  for (Guard* each = guard; each; each = each->outer) {
    if (at < each->memory.data() || at >= each->memory.data() + each->memory.size()) continue;
    each->fault = at;
    siglongjmp(each->back, 1);
  }
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else {
    signal(number, SIG_DFL);  // the instruction is tried again, and ends the process
  }
}

}  // namespace

thread_local Guard* guard = nullptr;

void install_guard() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action{};
    action.sa_sigaction = on_bus_error;
    // Not blocked while it runs: it may be left by a jump.
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &before);
  });
}

void throw_cut(const Guard& guard, const std::string& path) {
  throw FormatError("the file became shorter while it was read", path,
                    static_cast<std::uint64_t>(guard.fault - guard.memory.data()));
}

}  // namespace stepwell::detail
