// Batches on a CUDA device: the last stage of a Prefetch.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/device_blocks.hpp"
#include "loader/prefetch.hpp"

namespace stepwell::cuda {

// Threads read into pinned memory and begin the copy, each on a stream of its own. The consumer's stream waits for
// the copy; the memory is written again behind what that stream had been given when the batch was released.
class Feed : public Stage {
 public:
  // Values as DLPack describes them, and how many of them a row has in each dimension.
  struct Field {
    std::string name;
    std::uint8_t code, bits;
    std::vector<std::int64_t> shape;

    std::size_t row_bytes() const;
  };

  // A batch in device memory.
  struct Batch : Result {
    Batch(std::shared_ptr<DeviceBlocks> pool, std::unique_ptr<DeviceBlock> block)
        : pool(std::move(pool)), block(std::move(block)) {}
    ~Batch() override { pool->give_back(std::move(block)); }

    const std::shared_ptr<DeviceBlocks> pool;
    std::unique_ptr<DeviceBlock> block;
  };

  // For batches of up to `rows`. `lanes` is how many threads copy side by side, `keep` how many blocks stay when
  // they are not used. Throws DeviceError, and std::invalid_argument for a device that is not there.
  Feed(int device, std::vector<Field> fields, std::size_t rows, unsigned lanes, unsigned keep);
  ~Feed() override;

  int device() const { return device_.number(); }
  const std::vector<Field>& fields() const { return fields_; }
  // Where each field begins in a batch of so many rows.
  std::vector<std::size_t> layout(std::size_t rows) const;

  std::unique_ptr<Result> begin(unsigned thread) override;
  BlockRef memory(std::size_t bytes) override;
  void finish(Result& result, unsigned thread, BlockRef block, std::size_t bytes) override;

  // Has `stream` wait for the batch, if it is not there yet, and then read it. Without a stream the host waits, and the
  // memory is written again only when all work of the device has ended: call without the GIL.
  void hand_over(Batch& batch, std::optional<Stream> stream);

  // Has `stream` copy a batch of so many rows to another place on the device.
  void put(Batch& batch, std::int64_t rows, Address to, Stream stream);

  // Whoever has the batch at this address reads it on one more stream. False where no batch is.
  bool record_stream(Address address, Stream stream) { return device_blocks_->use(address, stream); }

  // Frees device memory that no batch is in.
  void trim() { device_blocks_->trim(); }
  std::size_t blocks() const { return device_blocks_->made(); }

 private:
  const Device device_;
  const std::vector<Field> fields_;
  const std::size_t bytes_;
  std::vector<Stream> lanes_;
  const std::shared_ptr<PinnedBlocks> pinned_blocks_;
  const std::shared_ptr<DeviceBlocks> device_blocks_;
};

}  // namespace stepwell::cuda
