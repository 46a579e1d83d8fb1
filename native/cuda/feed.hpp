// Batches on a CUDA device, which threads copy there.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cuda/device_blocks.hpp"
#include "reader.hpp"

namespace stepwell::cuda {

// Threads read into pinned memory and begin the copy, on one of several streams. The consumer's stream waits for
// the copy; the memory is written again behind what that stream had been given when the last batch in it was released.
//
// A call of the driver takes a lock that the launch of a kernel takes as well, and some microseconds: small batches
// cross together, in one block with one copy.
class Feed {
 public:
  // Values as DLPack describes them, and how many of them a row has in each dimension.
  struct Field {
    std::string name;
    std::uint8_t code, bits;
    std::vector<std::int64_t> shape;

    std::size_t row_bytes() const;
  };

  // Batches that cross together, batch i at i times `Feed::batch_bytes`.
  struct Group {
    Group(std::shared_ptr<DeviceBlocks> pool, std::unique_ptr<DeviceBlock> block, Stream lane, BlockRef here,
          unsigned batches);
    ~Group() { pool->give_back(std::move(block)); }

    const std::shared_ptr<DeviceBlocks> pool;
    std::unique_ptr<DeviceBlock> block;
    const Stream lane;
    std::mutex lock;
    BlockRef here;                    // pinned, from the first batch that is read until the copy has begun
    std::atomic<unsigned> missing;    // batches that are still read
    std::atomic<std::size_t> end{0};  // of what was read
    std::exception_ptr failed{};      // why there is no copy
  };

  // For up to `together` batches of up to `rows` rows. There are `lanes` streams for copies, and `keep` blocks stay when
  // they are not used. Throws DeviceError, and std::invalid_argument for a device that is not there.
  Feed(int device, std::vector<Field> fields, std::size_t rows, unsigned together, unsigned lanes, unsigned keep);
  ~Feed();
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  int device() const { return device_.number(); }
  const std::vector<Field>& fields() const { return fields_; }
  unsigned together() const { return together_; }
  std::size_t batch_bytes() const { return bytes_; }
  // Where each field begins in a batch of so many rows.
  std::vector<std::size_t> layout(std::size_t rows) const;

  // Pinned memory for batches that cross together. Throws OutOfMemory.
  BlockRef pinned();
  // So many batches that will cross, out of this memory if it is given, and memory on the device for them. Throws
  // OutOfMemory.
  std::shared_ptr<Group> begin(unsigned lane, unsigned batches, BlockRef here = {});
  // Where batch number i is to be read to, in any thread. Throws OutOfMemory.
  std::byte* memory(Group& group, unsigned i, std::size_t bytes);
  // One more batch was read, or will never be. With the last one the copy begins.
  void settle(Group& group) noexcept;

  // Has `stream` wait for the batches, if they are not there yet, and then read them. Without a stream the host waits,
  // and the memory is written again only when all work of the device has ended: call without the GIL.
  void hand_over(Group& group, std::optional<Stream> stream);

  // Has `stream`, which waits for the group, copy batch i of so many rows to another place on the device.
  void put(const Group& group, unsigned i, std::int64_t rows, Address to, Stream stream);

  // Whoever has the batch at this address reads it on one more stream. False where no batch is.
  bool record_stream(Address address, Stream stream) { return device_blocks_->use(address, stream); }

  // Frees device memory that no batch is in.
  void trim() { device_blocks_->trim(); }
  std::size_t blocks() const { return device_blocks_->made(); }

 private:
  const Device device_;
  const std::vector<Field> fields_;
  const unsigned together_;
  const std::size_t bytes_;
  std::vector<Stream> lanes_;
  const std::shared_ptr<PinnedBlocks> pinned_blocks_;
  const std::shared_ptr<DeviceBlocks> device_blocks_;
};

}  // namespace stepwell::cuda
