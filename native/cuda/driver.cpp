#include "cuda/driver.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

namespace stepwell::cuda {
namespace {

std::string name_of(const Driver& driver, Status status) {
  const char* name = nullptr;
  if (driver.cuGetErrorName(status, &name) != 0 || name == nullptr) name = "an unknown error";
  return std::string(name) + " (" + std::to_string(status) + ")";
}

template <class Function>
void find(void* library, const Driver& driver, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr)
    throw DeviceError("expected " + std::string(name) + " in CUDA's driver, got none in " + driver.path);
}

Driver* load() {
  const char* given = std::getenv("STEPWELL_CUDA_LIBRARY");
  auto* made = new Driver{};  // never freed: what uses it may outlive everything
  made->path = given != nullptr && *given != 0 ? given : "libcuda.so.1";
  void* library = dlopen(made->path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    const std::string message = std::string("expected CUDA's driver, got ") + (reason ? reason : made->path.c_str());
    delete made;
    throw DeviceError(message);
  }
  Driver& d = *made;
#define STEPWELL_FIND(function, name) find(library, d, name, d.function)
  STEPWELL_FIND(cuInit, "cuInit");
  STEPWELL_FIND(cuGetErrorName, "cuGetErrorName");
  STEPWELL_FIND(cuDeviceGetCount, "cuDeviceGetCount");
  STEPWELL_FIND(cuDeviceGet, "cuDeviceGet");
  STEPWELL_FIND(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  STEPWELL_FIND(cuCtxPushCurrent, "cuCtxPushCurrent_v2");
  STEPWELL_FIND(cuCtxPopCurrent, "cuCtxPopCurrent_v2");
  STEPWELL_FIND(cuCtxSynchronize, "cuCtxSynchronize");
  STEPWELL_FIND(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
  STEPWELL_FIND(cuMemGetInfo, "cuMemGetInfo_v2");
  STEPWELL_FIND(cuMemAlloc, "cuMemAlloc_v2");
  STEPWELL_FIND(cuMemFree, "cuMemFree_v2");
  STEPWELL_FIND(cuMemHostAlloc, "cuMemHostAlloc");
  STEPWELL_FIND(cuMemFreeHost, "cuMemFreeHost");
  STEPWELL_FIND(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2");
  STEPWELL_FIND(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2");
  STEPWELL_FIND(cuStreamCreate, "cuStreamCreate");
  STEPWELL_FIND(cuStreamDestroy, "cuStreamDestroy_v2");
  STEPWELL_FIND(cuStreamWaitEvent, "cuStreamWaitEvent");
  STEPWELL_FIND(cuStreamIsCapturing, "cuStreamIsCapturing");
  STEPWELL_FIND(cuEventCreate, "cuEventCreate");
  STEPWELL_FIND(cuEventDestroy, "cuEventDestroy_v2");
  STEPWELL_FIND(cuEventRecord, "cuEventRecord");
  STEPWELL_FIND(cuEventQuery, "cuEventQuery");
  STEPWELL_FIND(cuEventSynchronize, "cuEventSynchronize");
#undef STEPWELL_FIND
  if (const Status status = d.cuInit(0); status != 0)
    throw DeviceError("expected a CUDA driver that starts, got " + name_of(d, status) + " from cuInit of " + d.path);
  return made;
}

}  // namespace

void Driver::check(Status status, const char* call) const {
  if (status != 0) throw DeviceError("expected " + std::string(call) + " to succeed, got " + name_of(*this, status));
}

const Driver& driver() {
  static std::mutex lock;
  static std::atomic<int> process{0};  // that has started it
  static Driver* found = nullptr;
  // Looked at without the lock: another thread may have held it when this child was forked.
  const int first = process.load(std::memory_order_acquire);
  if (first == ::getpid()) return *found;
  if (first != 0)
    throw DeviceError("expected process " + std::to_string(first) + ", which has begun to use CUDA, got its forked child " +
                      std::to_string(::getpid()) + ": CUDA does not survive a fork, start the child with 'spawn'");
  std::lock_guard guard(lock);
  if (found == nullptr) {
    found = load();
    process.store(::getpid(), std::memory_order_release);
  }
  return *found;
}

Device::Device(int number) : number_(number), driver_(&cuda::driver()), process_(::getpid()) {
  int count = 0, handle = 0;
  driver_->check(driver_->cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (number < 0 || number >= count)
    throw std::invalid_argument("device: expected one of the " + std::to_string(count) +
                                " that CUDA sees, counted from cuda:0, got cuda:" + std::to_string(number));
  driver_->check(driver_->cuDeviceGet(&handle, number), "cuDeviceGet");
  driver_->check(driver_->cuDevicePrimaryCtxRetain(&context_, handle), "cuDevicePrimaryCtxRetain");
}

bool Device::is_here() const { return process_ == ::getpid(); }

Current::Current(const Device& device) : driver_(device.driver()) {
  driver_.check(driver_.cuCtxPushCurrent(device.context()), "cuCtxPushCurrent");
  driver_.cuThreadExchangeStreamCaptureMode(&mode_);
}

Current::~Current() {
  driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  Context popped;
  driver_.cuCtxPopCurrent(&popped);
}

}  // namespace stepwell::cuda
