#include "unlocked.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include "arrays.hpp"

namespace stepwell::bind {
namespace {

std::atomic<int> asking{0};  // threads between their work and the GIL
std::atomic<bool> exiting{false};
std::thread::id exiting_thread;

void at_exit() {
  exiting_thread = std::this_thread::get_id();
  exiting.store(true);
  PyThreadState* state = PyEval_SaveThread();
  for (int i = 0; i < 1000 && asking.load() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  PyEval_RestoreThread(state);
}

}  // namespace

Unlocked::~Unlocked() {
  asking.fetch_add(1);
  if (exiting.load() && std::this_thread::get_id() != exiting_thread) {
    asking.fetch_sub(1);
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  PyEval_RestoreThread(state_);
  asking.fetch_sub(1);
}

void bind_exit(nb::module_&) {
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&at_exit));
}

}  // namespace stepwell::bind
