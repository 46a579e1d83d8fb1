// Batches made ahead of time by native threads, handed over in order.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "blocks.hpp"
#include "loader/order.hpp"
#include "loader/schedule.hpp"
#include "reader.hpp"

namespace stepwell {

// Writes the rows that `step` reads.
void step_rows(const Order& order, const Schedule::Step& step, std::span<std::int64_t> out);

// What threads do with a batch besides reading it, such as a copy to a device.
class Stage {
 public:
  // What the consumer gets in the place of a block. One that ends before `finish` is of a batch that could not be read.
  struct Result {
    virtual ~Result() = default;
  };

  virtual ~Stage() = default;
  // A place for batch `number`, on thread number `thread`. Called in the order of batches, one at a time. std::bad_alloc
  // is no error until the consumer waits for this very batch: before that it may let go of others.
  virtual std::unique_ptr<Result> begin(std::uint64_t number, unsigned thread) = 0;
  // Memory that the batch is read into.
  virtual std::byte* memory(Result& result, std::size_t bytes) = 0;
  // Goes on with a batch that was read.
  virtual void finish(Result& result) = 0;
};

// Each thread makes whole batches: rows from the order, a block from the pool, the rows read
// into it. At most `depth` batches are made and not yet handed over. No thread ever needs
// Python, so a consumer that is busy there does not hold them up.
class Prefetch {
 public:
  struct Batch {
    BlockRef block;  // laid out by block_layout(reader, step.count)
    std::size_t bytes;
    Schedule::Step step;
    std::unique_ptr<Stage::Result> result{};  // with a stage, and then no block
  };

  // As many threads as the system allows, up to `threads`; std::runtime_error for none.
  Prefetch(ReaderPtr reader, OrderPtr order, Schedule schedule, std::shared_ptr<BlockPool> blocks,
           unsigned threads, unsigned depth, std::shared_ptr<Stage> stage = nullptr);
  // Waits for the threads to finish the batch they are at. In a forked child, where they do
  // not exist, it leaves their memory alone instead.
  ~Prefetch();
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  // The next batch, or nothing when it is not there after `patience`. Rethrows what making
  // this batch threw, once; the call after it gives the batch that follows.
  // Throws std::runtime_error once closed. Call without the GIL.
  std::optional<Batch> next(std::chrono::milliseconds patience);

  // Batches that `next` has given so far, those that failed included.
  std::uint64_t delivered() const;

  const Schedule& schedule() const { return schedule_; }

  // Wakes every waiting thread and ends the work. Safe to call from any thread, repeatedly.
  void close();

 private:
  struct Slot {
    bool ready = false;
    Batch batch{};
    std::exception_ptr error{};
  };

  void work(unsigned thread);
  void expect(std::uint64_t number);
  bool begin_stage(std::uint64_t number, unsigned thread, Slot& made);

  const ReaderPtr reader_;
  const OrderPtr order_;
  const Schedule schedule_;
  const std::shared_ptr<BlockPool> blocks_;
  const std::shared_ptr<Stage> stage_;
  const int process_;

  struct Shared {
    std::mutex lock;
    std::condition_variable room;   // for threads: a slot is free
    std::condition_variable ready;  // for the consumer: its batch is there
    std::vector<Slot> slots;
    std::uint64_t claimed = 0;    // steps that some thread has begun
    std::uint64_t delivered = 0;  // steps handed over
    std::chrono::steady_clock::time_point left{};   // when the consumer was here last
    std::chrono::steady_clock::duration gap{};      // what it did other things for, the last time
    bool watched = false;         // whether a thread looks for free slots by itself
    std::mutex expecting;
    std::uint64_t expected = 0;   // steps whose rows were asked for, where they are not in memory; under `expecting`
    std::mutex stage_order;        // held from claiming a step until its stage has begun; taken before `lock`
    std::condition_variable turn;  // for the thread whose stage has no memory: the consumer waits for its batch
    bool asking = false;           // whether the consumer waits
    bool closed = false;
    std::vector<std::thread> threads;
  };
  std::unique_ptr<Shared> shared_;
};

}  // namespace stepwell
