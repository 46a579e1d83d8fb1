// Memory that batches cross to a device in: pinned blocks here, blocks of device memory there.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "blocks.hpp"
#include "cuda/driver.hpp"

namespace stepwell::cuda {

// Pinned memory of the host, in blocks of one size. A block is written again only when the copy out of it is done.
class PinnedBlocks : public std::enable_shared_from_this<PinnedBlocks> {
 public:
  PinnedBlocks(Device device, std::size_t bytes, std::size_t max);
  ~PinnedBlocks();

  // A block that nothing is copied out of any more. Where none is, it makes one more, up to `max`, and then waits.
  // The calling thread has a Current. Throws OutOfMemory.
  BlockRef take();

  // Has the block stay as it is until the work that `stream` has so far is done.
  void leave_behind(const BlockRef& block, Stream stream);

  std::size_t bytes() const { return bytes_; }

 private:
  struct Pinned {
    void* memory = nullptr;
    Event left = nullptr;  // recorded behind the copy out of it
    bool is_leaving = false;
  };
  struct GiveBack {
    std::shared_ptr<PinnedBlocks> pool;
    Pinned block;
    void operator()(std::byte*) noexcept;
  };

  Pinned make();

  const Device device_;
  const std::size_t bytes_, max_;
  std::mutex lock_;
  std::deque<Pinned> free_;  // the one that was returned first is the first
  std::size_t made_ = 0;
};

// One block of device memory, and what has to be over before it is written again.
struct DeviceBlock {
  Address at = 0;
  Event arrived = nullptr;       // recorded behind the copy into it
  bool is_copied = false;        // whether that ever was
  std::vector<Stream> users{};   // whose work may read it
  std::vector<Event> left{};     // recorded behind that work when the block was returned,
  std::size_t waits = 0;         // so many of them, if no copy is behind them yet
  bool needs_sync = false;       // nobody knows whose work reads it
};

// Blocks of one size on a device. They are returned in any thread while work that reads them is under way: the
// next copy into one waits for that work on the device, the host does not.
class DeviceBlocks {
 public:
  // `keep` blocks stay when they are not used.
  DeviceBlocks(Device device, std::size_t bytes, std::size_t keep);
  ~DeviceBlocks();

  // A block whose past `stream` has been made to wait for. The calling thread has a Current. Throws OutOfMemory.
  std::unique_ptr<DeviceBlock> take(Stream stream);

  // The work on `stream` reads the block from now on. False for an address that no block in use has.
  void use(DeviceBlock& block, Stream stream);
  bool use(Address address, Stream stream);

  // Safe in any thread, also in a forked child and when the driver is gone, where it does nothing.
  void give_back(std::unique_ptr<DeviceBlock> block) noexcept;

  // Frees blocks that are not used, behind the work that reads them.
  void trim();

  std::size_t made() const;

 private:
  using Owned = std::unique_ptr<DeviceBlock>;

  Owned make();
  Owned take_free();
  bool settle();
  void mark_past(DeviceBlock& block);
  void free(Owned block);

  const Device device_;
  const std::size_t bytes_, keep_;
  mutable std::mutex lock_;
  std::deque<Owned> free_;      // the one that was returned first is the first
  std::deque<Owned> unsynced_;  // for which all work of the device has to end
  std::map<Address, DeviceBlock*> used_;
  std::size_t made_ = 0;
};

}  // namespace stepwell::cuda
