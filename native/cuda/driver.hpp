// CUDA's driver, found when a program runs: nothing of it is there when this is built.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

namespace stepwell::cuda {

// The driver's own handles and numbers, as its C interface has them.
using Context = struct ContextHandle*;
using Stream = struct StreamHandle*;  // nullptr is the default one of the current context
using Event = struct EventHandle*;
using Address = std::uint64_t;  // in a device's memory
using Status = int;             // 0 is success

constexpr Status kOutOfMemory = 2;
constexpr Status kNotReady = 600;

// What the driver refused, or that there is none: DeviceError.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The device has no room for a batch: MemoryError.
struct OutOfMemory : std::bad_alloc {
  explicit OutOfMemory(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

// The functions that are used, under the names of the driver's documentation.
struct Driver {
  std::string path;
  Status (*cuInit)(unsigned);
  Status (*cuGetErrorName)(Status, const char**);
  Status (*cuDeviceGetCount)(int*);
  Status (*cuDeviceGet)(int*, int);
  Status (*cuDevicePrimaryCtxRetain)(Context*, int);
  Status (*cuCtxPushCurrent)(Context);
  Status (*cuCtxPopCurrent)(Context*);
  Status (*cuCtxSynchronize)();
  Status (*cuThreadExchangeStreamCaptureMode)(int*);
  Status (*cuMemGetInfo)(std::size_t*, std::size_t*);
  Status (*cuMemAlloc)(Address*, std::size_t);
  Status (*cuMemFree)(Address);
  Status (*cuMemHostAlloc)(void**, std::size_t, unsigned);
  Status (*cuMemFreeHost)(void*);
  Status (*cuMemcpyHtoDAsync)(Address, const void*, std::size_t, Stream);
  Status (*cuMemcpyDtoDAsync)(Address, Address, std::size_t, Stream);
  Status (*cuStreamCreate)(Stream*, unsigned);
  Status (*cuStreamDestroy)(Stream);
  Status (*cuStreamWaitEvent)(Stream, Event, unsigned);
  Status (*cuStreamIsCapturing)(Stream, int*);
  Status (*cuEventCreate)(Event*, unsigned);
  Status (*cuEventDestroy)(Event);
  Status (*cuEventRecord)(Event, Stream);
  Status (*cuEventQuery)(Event);
  Status (*cuEventSynchronize)(Event);

  // Throws DeviceError unless `status` is success.
  void check(Status status, const char* call) const;
};

// The process's driver: libcuda.so.1, or the library that STEPWELL_CUDA_LIBRARY names. Throws
// DeviceError when there is none, when it does not start, and in a forked child of a process that has
// used it: no driver survives a fork.
const Driver& driver();

// One device with its primary context, which torch's and JAX's work is in as well. It is held until the
// process ends.
class Device {
 public:
  // Throws std::invalid_argument for a number that no device has.
  explicit Device(int number);

  int number() const { return number_; }
  const Driver& driver() const { return *driver_; }
  Context context() const { return context_; }
  // Whether this is the process that the device was opened in.
  bool is_here() const;

 private:
  int number_;
  const Driver* driver_;
  Context context_ = nullptr;
  int process_;
};

// Makes a device's context that of the calling thread, for as long as this lives. Calls inside are allowed
// while another thread captures a graph.
class Current {
 public:
  explicit Current(const Device& device);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
  int mode_ = 2;  // relaxed
};

}  // namespace stepwell::cuda
