#include "cuda/feed.hpp"

#include <algorithm>
#include <utility>

namespace stepwell::cuda {
namespace {

constexpr unsigned kNonBlocking = 1;  // a stream that does not wait for the default one

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

Feed::Feed(int device, std::vector<Field> fields, std::size_t rows, unsigned lanes, unsigned keep)
    : device_(device),
      fields_(std::move(fields)),
      bytes_(std::max<std::size_t>(layout(rows).back(), 1)),
      pinned_blocks_(std::make_shared<PinnedBlocks>(device_, bytes_, keep)),
      device_blocks_(std::make_shared<DeviceBlocks>(device_, bytes_, keep)) {
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

std::unique_ptr<Stage::Result> Feed::begin(unsigned thread) {
  cuda::driver();  // refuses a forked child
  const Current current(device_);
  return std::make_unique<Batch>(device_blocks_, device_blocks_->take(lanes_[thread % lanes_.size()]));
}

BlockRef Feed::memory(std::size_t bytes) {
  if (bytes > bytes_)
    throw std::invalid_argument("expected a batch of up to " + std::to_string(bytes_) + " bytes, got " +
                                std::to_string(bytes));
  cuda::driver();
  const Current current(device_);
  return pinned_blocks_->take();
}

void Feed::finish(Result& result, unsigned thread, BlockRef block, std::size_t bytes) {
  const Driver& d = device_.driver();
  const Stream lane = lanes_[thread % lanes_.size()];
  const Current current(device_);
  DeviceBlock& there = *dynamic_cast<Batch&>(result).block;
  there.needs_sync = true;  // until all of it went well
  if (bytes > 0) d.check(d.cuMemcpyHtoDAsync(there.at, block.get(), bytes, lane), "cuMemcpyHtoDAsync");
  pinned_blocks_->leave_behind(block, lane);
  d.check(d.cuEventRecord(there.arrived, lane), "cuEventRecord");
  there.is_copied = true;
  there.waits = 0;  // the copy is behind them
  there.needs_sync = false;
}

void Feed::hand_over(Batch& batch, std::optional<Stream> stream) {
  const Driver& d = cuda::driver();  // refuses a forked child
  const Current current(device_);
  DeviceBlock& block = *batch.block;
  if (stream) {
    if (d.cuEventQuery(block.arrived) != 0)
      d.check(d.cuStreamWaitEvent(*stream, block.arrived, 0), "cuStreamWaitEvent");
    device_blocks_->use(block, *stream);
  } else {
    d.check(d.cuEventSynchronize(block.arrived), "cuEventSynchronize");
    block.needs_sync = true;
  }
}

void Feed::put(Batch& batch, std::int64_t rows, Address to, Stream stream) {
  hand_over(batch, stream);
  const Driver& d = device_.driver();
  const Current current(device_);
  const std::size_t bytes = layout(static_cast<std::size_t>(rows)).back();
  if (bytes > 0) d.check(d.cuMemcpyDtoDAsync(to, batch.block->at, bytes, stream), "cuMemcpyDtoDAsync");
}

}  // namespace stepwell::cuda
