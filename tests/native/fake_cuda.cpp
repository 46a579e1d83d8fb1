// CUDA's driver over the memory of the host, for machines without a GPU. It checks every call, and ends the process
// with a sentence at the first that a real driver would forgive and then give wrong batches for.
//
// A stream is a thread that runs late: each piece of work waits for a random number of further calls, unless somebody
// on the host waits for a stream. Who is ordered behind whom does not depend on that luck: streams have vector clocks,
// which events carry from one to another, and an access that is not ordered behind an earlier one is an error when it
// is issued. fake_* are the functions that only tests call.

#include <unistd.h>

#include <condition_variable>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

constexpr int kSuccess = 0, kInvalid = 1, kOutOfMemory = 2, kNoDevice = 100, kNotReady = 600;

[[noreturn]] [[gnu::format(printf, 1, 2)]] void fail(const char* format, ...) {
  std::va_list values;
  va_start(values, format);
  std::fputs("fake CUDA: ", stderr);
  std::vfprintf(stderr, format, values);
  std::fputs("\n", stderr);
  std::abort();
}

using Clock = std::map<int, std::uint64_t>;  // of each stream, how much of its work is over

void join(Clock& clock, const Clock& other) {
  for (const auto& [stream, count] : other) clock[stream] = std::max(clock[stream], count);
}

bool covers(const Clock& clock, int stream, std::uint64_t count) {
  const auto found = clock.find(stream);
  return found != clock.end() && found->second >= count;
}

struct Context;

struct Stream {
  int id;
  Context* context;
  Clock clock{};
  struct Work {
    std::uint64_t due;
    std::function<bool()> is_ready;
    std::function<void()> run;
  };
  std::deque<Work> work{};
  bool is_destroyed = false, is_capturing = false;
};

struct Event {
  Context* context;
  Clock clock{};
  std::shared_ptr<bool> is_over = std::make_shared<bool>(true);
  bool is_recorded = false;
};

struct Memory {
  std::size_t bytes;
  Context* context;  // none for memory of the host
  Clock reads{}, writes{};
};

struct Context {
  int device;
  std::size_t limit = std::size_t{1} << 30, used = 0;
  Stream* standard = nullptr;
};

struct World {
  std::mutex lock;
  std::condition_variable moved;
  int process = getpid();
  std::uint64_t calls = 0;
  int hurry = 0;  // threads of the host that wait
  Clock host{};   // what the host has waited for
  std::mt19937_64 random{};
  std::vector<Context*> contexts{};
  std::vector<Stream*> streams{};
  std::map<std::uintptr_t, Memory> memory{};
  std::map<Event*, bool> events{};
};

// Never destroyed: threads look at it until the process is gone.
World& world() {
  static World* made = [] {
    auto* fresh = new World;
    const char* seed = std::getenv("FAKE_CUDA_SEED");
    fresh->random.seed(seed ? std::strtoull(seed, nullptr, 10) : 1);
    const char* count = std::getenv("FAKE_CUDA_DEVICES");
    for (int i = 0; i < (count ? std::atoi(count) : 2); ++i) fresh->contexts.push_back(new Context{i});
    return fresh;
  }();
  return *made;
}

thread_local std::vector<Context*> current;

void run(Stream* stream) {
  World& w = world();
  std::unique_lock guard(w.lock);
  for (;;) {
    w.moved.wait(guard, [&] {
      if (stream->work.empty()) return stream->is_destroyed;
      const auto& next = stream->work.front();
      return (w.hurry > 0 || w.calls >= next.due || stream->is_destroyed) && next.is_ready();
    });
    if (stream->work.empty()) return;
    stream->work.front().run();
    stream->work.pop_front();
    w.moved.notify_all();
  }
}

Stream* new_stream(Context* context) {
  World& w = world();
  auto* made = new Stream{static_cast<int>(w.streams.size()), context};
  w.streams.push_back(made);
  std::thread(run, made).detach();
  return made;
}

// A call under the lock, from a process and a thread that may make it.
struct Call {
  const char* name;
  World& w = world();
  std::unique_lock<std::mutex> guard{w.lock, std::defer_lock};

  explicit Call(const char* name, bool in_context = true) : name(name) {
    if (getpid() != w.process) fail("%s: called in a forked child", name);
    guard.lock();
    ++w.calls;
    w.moved.notify_all();
    if (in_context && current.empty()) fail("%s: called without a current context", name);
  }

  void check(const Context* context) const {
    if (context != current.back())
      fail("%s: expected the context of device %d, got that of device %d", name, context->device,
           current.back()->device);
  }

  Stream& stream(Stream* given) const {
    if (given == nullptr) return *current.back()->standard;
    if (given->is_destroyed) fail("%s: the stream was destroyed", name);
    check(given->context);
    return *given;
  }

  Event& event(Event* given) const {
    if (!w.events.contains(given)) fail("%s: no such event, or one that was destroyed", name);
    check(given->context);
    return *given;
  }

  Memory& memory(std::uintptr_t address, std::size_t bytes, bool on_device) const {
    auto found = w.memory.upper_bound(address);
    if (found == w.memory.begin() || address + bytes > (--found)->first + found->second.bytes)
      fail("%s: %zu bytes at %zx are not in memory that is allocated", name, bytes, address);
    if ((found->second.context != nullptr) != on_device) fail("%s: memory of the wrong side", name);
    if (on_device) check(found->second.context);
    return found->second;
  }

  std::uint64_t issue(Stream& stream, std::function<void()> work, std::function<bool()> is_ready = nullptr) {
    join(stream.clock, w.host);
    const std::uint64_t number = ++stream.clock[stream.id];
    if (!is_ready) is_ready = [] { return true; };
    stream.work.push_back({w.calls + w.random() % 24, std::move(is_ready), std::move(work)});
    return number;
  }

  // Accesses of other streams that this one is not ordered behind are errors.
  void touch(Memory& memory, Stream& stream, std::uint64_t number, bool is_write) const {
    const auto check_behind = [&](const Clock& others, const char* what) {
      for (const auto& [other, count] : others)
        if (!covers(stream.clock, other, count))
          fail("%s: missing wait: stream %d %s memory that stream %d %s, and does not wait for that", name, stream.id,
               is_write ? "writes" : "reads", other, what);
    };
    check_behind(memory.writes, "writes");
    if (is_write) check_behind(memory.reads, "reads");
    (is_write ? memory.writes : memory.reads)[stream.id] = number;
  }

  void check_unused(const Memory& memory) const {
    for (const Clock* uses : {&memory.reads, &memory.writes})
      for (const auto& [stream, count] : *uses)
        if (!covers(w.host, stream, count)) fail("%s: freed while stream %d may still use it", name, stream);
  }

  void wait(const std::function<bool()>& is_over) {
    ++w.hurry;
    w.moved.notify_all();
    w.moved.wait(guard, is_over);
    --w.hurry;
  }
};

std::uint64_t hash_of(const void* memory, std::size_t bytes) {
  return std::hash<std::string_view>{}({static_cast<const char*>(memory), bytes});
}

int allocate(Call& call, std::size_t bytes, Context* context, std::uintptr_t& address) {
  if (bytes == 0) return kInvalid;
  void* memory = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  std::memset(memory, 0xDB, bytes);
  address = reinterpret_cast<std::uintptr_t>(memory);
  call.w.memory[address] = {bytes, context};
  return kSuccess;
}

int release(Call& call, std::uintptr_t address, bool on_device) {
  const auto found = call.w.memory.find(address);
  if (found == call.w.memory.end()) fail("%s: freed twice, or never allocated", call.name);
  Memory& memory = call.memory(address, 1, on_device);
  call.check_unused(memory);
  if (on_device) memory.context->used -= memory.bytes;
  std::memset(reinterpret_cast<void*>(address), 0xDD, memory.bytes);
  std::free(reinterpret_cast<void*>(address));
  call.w.memory.erase(found);
  return kSuccess;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  Call call("cuInit", false);
  return call.w.contexts.empty() ? kNoDevice : kSuccess;
}

int cuGetErrorName(int status, const char** name) {
  static const std::map<int, const char*> names{{kInvalid, "CUDA_ERROR_INVALID_VALUE"},
                                                {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                {kNoDevice, "CUDA_ERROR_NO_DEVICE"}};
  const auto found = names.find(status);
  if (found == names.end()) return kInvalid;
  *name = found->second;
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  Call call("cuDeviceGetCount", false);
  *count = static_cast<int>(call.w.contexts.size());
  return kSuccess;
}

int cuDeviceGet(int* device, int number) {
  *device = number + 40;  // a handle is no number
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(Context** context, int device) {
  Call call("cuDevicePrimaryCtxRetain", false);
  *context = call.w.contexts.at(static_cast<std::size_t>(device - 40));
  if ((*context)->standard == nullptr) (*context)->standard = new_stream(*context);
  return kSuccess;
}

int cuCtxPushCurrent_v2(Context* context) {
  Call call("cuCtxPushCurrent", false);
  current.push_back(context);
  return kSuccess;
}

int cuCtxPopCurrent_v2(Context** context) {
  Call call("cuCtxPopCurrent");
  *context = current.back();
  current.pop_back();
  return kSuccess;
}

int cuCtxSynchronize() {
  Call call("cuCtxSynchronize");
  Context* const here = current.back();
  for (Stream* stream : std::vector(call.w.streams)) {
    if (stream->context != here) continue;
    if (stream->is_capturing) return 900;
    const Clock reached = stream->clock;
    call.wait([stream] { return stream->work.empty(); });
    join(call.w.host, reached);
  }
  return kSuccess;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  thread_local int mine = 0;
  std::swap(mine, *mode);
  return kSuccess;
}

int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  Call call("cuMemGetInfo");
  const Context& here = *current.back();
  *total = here.limit;
  *free = here.limit - std::min(here.limit, here.used);
  return kSuccess;
}

int cuMemAlloc_v2(std::uintptr_t* address, std::size_t bytes) {
  Call call("cuMemAlloc");
  Context& here = *current.back();
  if (here.used + bytes > here.limit) return kOutOfMemory;
  here.used += bytes;
  return allocate(call, bytes, &here, *address);
}

int cuMemFree_v2(std::uintptr_t address) {
  Call call("cuMemFree");
  return release(call, address, true);
}

int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  Call call("cuMemHostAlloc");
  std::uintptr_t address = 0;
  const int status = allocate(call, bytes, nullptr, address);
  *memory = reinterpret_cast<void*>(address);
  return status;
}

int cuMemFreeHost(void* memory) {
  Call call("cuMemFreeHost");
  return release(call, reinterpret_cast<std::uintptr_t>(memory), false);
}

int cuMemcpyHtoDAsync_v2(std::uintptr_t to, const void* from, std::size_t bytes, Stream* given) {
  Call call("cuMemcpyHtoDAsync");
  Stream& stream = call.stream(given);
  Memory& there = call.memory(to, bytes, true);
  Memory& here = call.memory(reinterpret_cast<std::uintptr_t>(from), bytes, false);
  const std::uint64_t hash = hash_of(from, bytes);
  const auto number = call.issue(stream, [=] {
    if (hash_of(from, bytes) != hash) fail("cuMemcpyHtoDAsync: the host wrote into a block before it was copied");
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  });
  call.touch(there, stream, number, true);
  call.touch(here, stream, number, false);
  return kSuccess;
}

int cuMemcpyDtoDAsync_v2(std::uintptr_t to, std::uintptr_t from, std::size_t bytes, Stream* given) {
  Call call("cuMemcpyDtoDAsync");
  Stream& stream = call.stream(given);
  Memory& there = call.memory(to, bytes, true);
  Memory& here = call.memory(from, bytes, true);
  const auto number =
      call.issue(stream, [=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); });
  call.touch(there, stream, number, true);
  call.touch(here, stream, number, false);
  return kSuccess;
}

int cuStreamCreate(Stream** stream, unsigned flags) {
  Call call("cuStreamCreate");
  if (flags != 1) fail("cuStreamCreate: expected a stream that does not wait for the default one");
  *stream = new_stream(current.back());
  return kSuccess;
}

int cuStreamDestroy_v2(Stream* given) {
  Call call("cuStreamDestroy");
  call.stream(given).is_destroyed = true;
  return kSuccess;
}

int cuStreamWaitEvent(Stream* given, Event* event, unsigned) {
  Call call("cuStreamWaitEvent");
  Stream& stream = call.stream(given);
  const Event& awaited = call.event(event);
  if (!awaited.is_recorded) fail("cuStreamWaitEvent: the event was never recorded");
  join(stream.clock, awaited.clock);
  call.issue(stream, [] {}, [over = awaited.is_over] { return *over; });
  return kSuccess;
}

int cuStreamIsCapturing(Stream* given, int* status) {
  Call call("cuStreamIsCapturing");
  *status = call.stream(given).is_capturing;
  return kSuccess;
}

int cuEventCreate(Event** event, unsigned) {
  Call call("cuEventCreate");
  *event = new Event{current.back()};
  call.w.events[*event] = true;
  return kSuccess;
}

int cuEventDestroy_v2(Event* event) {
  Call call("cuEventDestroy");
  call.event(event);
  call.w.events.erase(event);
  delete event;
  return kSuccess;
}

int cuEventRecord(Event* event, Stream* given) {
  Call call("cuEventRecord");
  Stream& stream = call.stream(given);
  Event& recorded = call.event(event);
  if (stream.is_capturing) fail("cuEventRecord: recorded into a graph that is captured");
  recorded.is_over = std::make_shared<bool>(false);
  recorded.is_recorded = true;
  call.issue(stream, [over = recorded.is_over] { *over = true; });
  recorded.clock = stream.clock;
  return kSuccess;
}

int cuEventQuery(Event* event) {
  Call call("cuEventQuery");
  const Event& asked = call.event(event);
  if (!*asked.is_over) return kNotReady;
  join(call.w.host, asked.clock);
  return kSuccess;
}

int cuEventSynchronize(Event* event) {
  Call call("cuEventSynchronize");
  const Event awaited = call.event(event);
  call.wait([&] { return *awaited.is_over; });
  join(call.w.host, awaited.clock);
  return kSuccess;
}

// For tests.

Stream* fake_stream(int device) {
  Call call("fake_stream", false);
  Context* context = call.w.contexts.at(static_cast<std::size_t>(device));
  return new_stream(context);
}

// A kernel: copies device memory to `out` when its turn comes.
void fake_read(Stream* stream, std::uintptr_t from, std::size_t bytes, void* out) {
  Call call("a kernel", false);
  current.push_back(stream->context);
  Memory& memory = call.memory(from, bytes, true);
  const auto number = call.issue(*stream, [=] { std::memcpy(out, reinterpret_cast<void*>(from), bytes); });
  call.touch(memory, *stream, number, false);
  current.pop_back();
}

void fake_synchronize(Stream* stream) {
  Call call("fake_synchronize", false);
  const Clock reached = stream->clock;
  call.wait([stream] { return stream->work.empty(); });
  join(call.w.host, reached);
}

void fake_capture(Stream* stream, int is_capturing) {
  Call call("fake_capture", false);
  stream->is_capturing = is_capturing != 0;
}

void fake_limit(int device, std::size_t bytes) {
  Call call("fake_limit", false);
  call.w.contexts.at(static_cast<std::size_t>(device))->limit = bytes;
}

// Pieces of memory and events that were not freed.
std::size_t fake_live() {
  Call call("fake_live", false);
  return call.w.memory.size() + call.w.events.size();
}

}  // extern "C"
