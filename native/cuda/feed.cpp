#include "cuda/feed.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace stepwell::cuda {
namespace {

constexpr unsigned kNonBlocking = 1;  // a stream that does not wait for the default one

constexpr std::size_t kAlign = 256;   // of a batch in its block, as the driver has blocks

std::vector<std::size_t> sizes_of(const std::vector<Feed::Field>& fields) {
  std::vector<std::size_t> sizes;
  for (const auto& field : fields) sizes.push_back(field.row_bytes());
  return sizes;
}

}  // namespace

std::size_t Feed::Field::row_bytes() const {
  std::size_t bytes = bits / 8;
  for (const std::int64_t count : shape)
    if (count < 0 || __builtin_mul_overflow(bytes, static_cast<std::size_t>(count), &bytes)) throw std::bad_alloc();
  return bytes;
}

Feed::Group::Group(std::shared_ptr<DeviceBlocks> pool, std::unique_ptr<DeviceBlock> block, Stream lane,
                   BlockRef here, unsigned batches)
    : pool(std::move(pool)), block(std::move(block)), lane(lane), here(std::move(here)), missing(batches) {}

Feed::Feed(int device, std::vector<Field> fields, std::size_t rows, unsigned together, unsigned lanes, unsigned keep)
    : device_(device),
      fields_(std::move(fields)),
      together_(together),
      bytes_(std::max((layout(rows).back() + kAlign - 1) / kAlign, std::size_t{1}) * kAlign),
      pinned_blocks_(std::make_shared<PinnedBlocks>(device_, bytes_ * together, keep)),
      device_blocks_(std::make_shared<DeviceBlocks>(device_, bytes_ * together, keep)) {
  if (together == 0) throw std::invalid_argument("together: expected at least 1, got 0");
  if (lanes == 0) throw std::invalid_argument("lanes: expected at least 1, got 0");
  const Current current(device_);
  const Driver& d = device_.driver();
  for (unsigned i = 0; i < lanes; ++i) {
    Stream made;
    if (const Status status = d.cuStreamCreate(&made, kNonBlocking); status != 0) {
      for (const Stream each : lanes_) d.cuStreamDestroy(each);
      d.check(status, "cuStreamCreate");
    }
    lanes_.push_back(made);
  }
}

Feed::~Feed() {
  if (!device_.is_here()) return;
  try {
    const Current current(device_);
    for (const Stream each : lanes_) device_.driver().cuStreamDestroy(each);  // once their copies are done
  } catch (const DeviceError&) {  // the driver has ended before us
  }
}

std::vector<std::size_t> Feed::layout(std::size_t rows) const { return block_layout(sizes_of(fields_), rows); }

BlockRef Feed::pinned() {
  cuda::driver();  // refuses a forked child
  const Current current(device_);
  return pinned_blocks_->take();
}

std::shared_ptr<Feed::Group> Feed::begin(unsigned lane, unsigned batches, BlockRef here) {
  cuda::driver();
  const Current current(device_);
  const Stream stream = lanes_[lane % lanes_.size()];
  return std::make_shared<Group>(device_blocks_, device_blocks_->take(stream), stream, std::move(here), batches);
}

std::byte* Feed::memory(Group& group, unsigned i, std::size_t bytes) {
  if (bytes > bytes_)
    throw std::invalid_argument("expected a batch of up to " + std::to_string(bytes_) + " bytes, got " +
                                std::to_string(bytes));
  const std::size_t end = i * bytes_ + bytes;
  for (std::size_t before = group.end; before < end && !group.end.compare_exchange_weak(before, end);) {
  }
  std::lock_guard guard(group.lock);
  if (!group.here) group.here = pinned();
  return group.here.get() + i * bytes_;
}

void Feed::settle(Group& group) noexcept {
  if (group.missing.fetch_sub(1) != 1 || !device_.is_here()) return;
  DeviceBlock& there = *group.block;
  const BlockRef here = std::move(group.here);
  if (!here) return;  // none could be read
  try {
    const Driver& d = device_.driver();
    const Current current(device_);
    there.needs_sync = true;  // until all of it went well
    d.check(d.cuMemcpyHtoDAsync(there.at, here.get(), group.end, group.lane), "cuMemcpyHtoDAsync");
    pinned_blocks_->leave_behind(here, group.lane);
    d.check(d.cuEventRecord(there.arrived, group.lane), "cuEventRecord");
    there.is_copied = true;
    there.waits = 0;  // the copy is behind them
    there.needs_sync = false;
  } catch (...) {
    group.failed = std::current_exception();
  }
}

void Feed::hand_over(Group& group, std::optional<Stream> stream) {
  const Driver& d = cuda::driver();  // refuses a forked child
  if (group.failed) std::rethrow_exception(group.failed);
  const Current current(device_);
  DeviceBlock& block = *group.block;
  if (stream) {
    if (d.cuEventQuery(block.arrived) != 0)
      d.check(d.cuStreamWaitEvent(*stream, block.arrived, 0), "cuStreamWaitEvent");
    device_blocks_->use(block, *stream);
  } else {
    d.check(d.cuEventSynchronize(block.arrived), "cuEventSynchronize");
    block.needs_sync = true;
  }
}

void Feed::put(const Group& group, unsigned i, std::int64_t rows, Address to, Stream stream) {
  const Driver& d = device_.driver();
  const Current current(device_);
  const std::size_t bytes = layout(static_cast<std::size_t>(rows)).back();
  if (bytes > 0) d.check(d.cuMemcpyDtoDAsync(to, group.block->at + i * bytes_, bytes, stream), "cuMemcpyDtoDAsync");
}

}  // namespace stepwell::cuda
