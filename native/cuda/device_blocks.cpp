#include "cuda/device_blocks.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace stepwell::cuda {
namespace {

constexpr unsigned kBlockingSync = 1, kNoTiming = 2;  // of events
constexpr unsigned kPortable = 1;                     // pinned for every context

std::string named(const Device& device) { return "cuda:" + std::to_string(device.number()); }

}  // namespace

PinnedBlocks::PinnedBlocks(Device device, std::size_t bytes, std::size_t max)
    : device_(device), bytes_(bytes), max_(max) {}

PinnedBlocks::~PinnedBlocks() {
  if (!device_.is_here()) return;
  try {
    const Current current(device_);
    const Driver& d = device_.driver();
    for (const Pinned& block : free_) {
      if (block.is_leaving) d.cuEventSynchronize(block.left);
      d.cuEventDestroy(block.left);
      d.cuMemFreeHost(block.memory);
    }
  } catch (const DeviceError&) {  // the driver has ended before us
  }
}

PinnedBlocks::Pinned PinnedBlocks::make() {
  const Driver& d = device_.driver();
  Pinned block;
  const Status status = d.cuMemHostAlloc(&block.memory, bytes_, kPortable);
  if (status == kOutOfMemory)
    throw OutOfMemory("expected " + std::to_string(bytes_) + " bytes of host memory to pin for a batch, got none");
  d.check(status, "cuMemHostAlloc");
  if (const Status made = d.cuEventCreate(&block.left, kBlockingSync | kNoTiming); made != 0) {
    d.cuMemFreeHost(block.memory);
    d.check(made, "cuEventCreate");
  }
  return block;
}

BlockRef PinnedBlocks::take() {
  const Driver& d = device_.driver();
  Pinned block;
  bool wanted;
  {
    std::lock_guard guard(lock_);
    wanted = free_.empty() || (made_ < max_ && free_.front().is_leaving &&
                               d.cuEventQuery(free_.front().left) == kNotReady);
    if (wanted) {
      ++made_;
    } else {
      block = free_.front();
      free_.pop_front();
    }
  }
  if (wanted) {
    try {
      block = make();
    } catch (...) {
      std::lock_guard guard(lock_);
      --made_;
      throw;
    }
  }
  auto* memory = static_cast<std::byte*>(block.memory);
  BlockRef taken(memory, GiveBack{shared_from_this(), block});
  if (block.is_leaving) d.check(d.cuEventSynchronize(block.left), "cuEventSynchronize");
  std::get_deleter<GiveBack>(taken)->block.is_leaving = false;
  return taken;
}

void PinnedBlocks::leave_behind(const BlockRef& taken, Stream stream) {
  Pinned& block = std::get_deleter<GiveBack>(taken)->block;
  const Driver& d = device_.driver();
  if (const Status status = d.cuEventRecord(block.left, stream); status != 0) {
    d.cuCtxSynchronize();
    d.check(status, "cuEventRecord");
  }
  block.is_leaving = true;
}

void PinnedBlocks::GiveBack::operator()(std::byte*) noexcept {
  if (!pool->device_.is_here()) return;
  try {
    std::lock_guard guard(pool->lock_);
    pool->free_.push_back(block);
  } catch (const std::bad_alloc&) {  // it is lost
  }
}

DeviceBlocks::DeviceBlocks(Device device, std::size_t bytes, std::size_t keep)
    : device_(device), bytes_(bytes), keep_(keep) {}

DeviceBlocks::~DeviceBlocks() { trim(); }

DeviceBlocks::Owned DeviceBlocks::make() {
  const Driver& d = device_.driver();
  auto block = std::make_unique<DeviceBlock>();
  const Status status = d.cuMemAlloc(&block->at, bytes_);
  if (status == kOutOfMemory) {
    std::size_t free = 0, total = 0;
    d.cuMemGetInfo(&free, &total);
    throw OutOfMemory("expected " + std::to_string(bytes_) + " bytes of free memory on " + named(device_) +
                      " for more batches, got " + std::to_string(free) + " of " + std::to_string(total) + "; " +
                      std::to_string(made()) + " times as much is that of batches of this loader");
  }
  d.check(status, "cuMemAlloc");
  if (const Status made = d.cuEventCreate(&block->arrived, kNoTiming); made != 0) {
    d.cuMemFree(block->at);
    d.check(made, "cuEventCreate");
  }
  std::lock_guard guard(lock_);
  ++made_;
  return block;
}

// Waits for all work of the device, behind which blocks whose users nobody knows are free. False where none was, or
// while a graph is captured.
bool DeviceBlocks::settle() {
  std::deque<Owned> waiting;
  {
    std::lock_guard guard(lock_);
    waiting.swap(unsynced_);
  }
  const bool is_over = !waiting.empty() && device_.driver().cuCtxSynchronize() == 0;
  std::lock_guard guard(lock_);
  for (Owned& each : waiting) {
    if (is_over) each->waits = 0;
    each->needs_sync = !is_over;
    (is_over ? free_ : unsynced_).push_back(std::move(each));
  }
  return is_over;
}

// A block that is free, if there is one; those beyond what is kept are freed.
DeviceBlocks::Owned DeviceBlocks::take_free() {
  Owned block;
  std::vector<Owned> surplus;
  {
    std::lock_guard guard(lock_);
    if (!free_.empty()) {
      block = std::move(free_.front());
      free_.pop_front();
    }
    while (free_.size() > keep_) {
      surplus.push_back(std::move(free_.front()));
      free_.pop_front();
    }
  }
  for (Owned& each : surplus) free(std::move(each));
  return block;
}

std::unique_ptr<DeviceBlock> DeviceBlocks::take(Stream stream) {
  const Driver& d = device_.driver();
  Owned block = take_free();
  if (!block && made() >= keep_ && settle()) block = take_free();
  if (!block) {
    try {
      return make();
    } catch (const OutOfMemory&) {
      if (!settle()) throw;
      block = take_free();
      if (!block) throw;
    }
  }
  Status status = block->is_copied ? d.cuStreamWaitEvent(stream, block->arrived, 0) : 0;
  for (std::size_t i = 0; i < block->waits && status == 0; ++i)
    status = d.cuStreamWaitEvent(stream, block->left[i], 0);
  if (status != 0) {
    block->needs_sync = true;
    give_back(std::move(block));
    d.check(status, "cuStreamWaitEvent");
  }
  return block;
}

void DeviceBlocks::use(DeviceBlock& block, Stream stream) {
  std::lock_guard guard(lock_);
  used_.emplace(block.at, &block);
  block.users.push_back(stream);
}

bool DeviceBlocks::use(Address address, Stream stream) {
  std::lock_guard guard(lock_);
  auto found = used_.upper_bound(address);
  if (found == used_.begin() || address >= (--found)->first + bytes_) return false;
  auto& users = found->second->users;
  if (std::find(users.begin(), users.end(), stream) == users.end()) users.push_back(stream);
  return true;
}

// Records where the streams that use a block are, for the next copy to wait for. A block that nothing was copied into
// has the past that it had.
void DeviceBlocks::mark_past(DeviceBlock& block) {
  const Driver& d = device_.driver();
  for (const Stream stream : block.users) {
    int capturing = 0;  // an event recorded into a graph would be none of ours
    if (d.cuStreamIsCapturing(stream, &capturing) != 0 || capturing != 0) {
      block.needs_sync = true;
      continue;
    }
    if (block.waits == block.left.size()) {
      block.left.push_back(nullptr);
      if (d.cuEventCreate(&block.left.back(), kNoTiming) != 0) {
        block.left.pop_back();
        block.needs_sync = true;
        continue;
      }
    }
    if (d.cuEventRecord(block.left[block.waits], stream) == 0)
      ++block.waits;
    else
      block.needs_sync = true;
  }
  block.users.clear();
}

void DeviceBlocks::give_back(std::unique_ptr<DeviceBlock> block) noexcept {
  if (!device_.is_here()) return;
  try {
    {
      std::lock_guard guard(lock_);
      used_.erase(block->at);
    }
    const Current current(device_);
    mark_past(*block);
    std::lock_guard guard(lock_);
    (block->needs_sync ? unsynced_ : free_).push_back(std::move(block));
  } catch (const std::exception&) {  // the driver has ended before us, and its memory with it
  }
}

void DeviceBlocks::trim() {
  if (!device_.is_here()) return;
  std::deque<Owned> all;
  {
    std::lock_guard guard(lock_);
    all.swap(free_);
    for (Owned& each : unsynced_) all.push_back(std::move(each));
    unsynced_.clear();
  }
  try {
    const Current current(device_);
    for (Owned& each : all) free(std::move(each));
  } catch (const DeviceError&) {  // as above
  }
}

void DeviceBlocks::free(Owned block) {
  const Driver& d = device_.driver();
  if (block->is_copied) d.cuEventSynchronize(block->arrived);
  for (std::size_t i = 0; i < block->waits; ++i) d.cuEventSynchronize(block->left[i]);
  if (block->needs_sync) d.cuCtxSynchronize();
  d.cuMemFree(block->at);
  d.cuEventDestroy(block->arrived);
  for (const Event event : block->left) d.cuEventDestroy(event);
  std::lock_guard guard(lock_);
  --made_;
}

std::size_t DeviceBlocks::made() const {
  std::lock_guard guard(lock_);
  return made_;
}

}  // namespace stepwell::cuda
