#include "loader/prefetch.hpp"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace stepwell {
namespace {

// A thread that wakes up may take the core of the thread that woke it, the consumer, which
// would then wait for a batch it does not need yet. Batch threads do not do that.
void yield_to_others() {
#ifdef __linux__
  sched_param none{};
  pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);  // refused: no harm
#endif
}

// Between two batches. A thread that has nothing to do looks again after half of the batches that are there, if the consumer
// takes them so regularly; otherwise it is woken.
constexpr std::chrono::microseconds kShortGap{50};
constexpr std::chrono::milliseconds kLongGap{20};

// Smaller batches than that do not keep a disk busy: the next ones are asked for with them.
constexpr std::uint64_t kExpected = 2048;

}  // namespace

void step_rows(const Order& order, const Schedule::Step& step, std::span<std::int64_t> out) {
  std::int64_t start = step.start;
  while (!out.empty()) {
    const std::int64_t left = (order.length() - 1 - start) / step.stride + 1;  // before the ring's end
    const auto part = out.first(std::min(out.size(), static_cast<std::size_t>(left)));
    order.rows(step.epoch, start, part, step.stride);
    out = out.subspan(part.size());
    start = (start + left * step.stride) % order.length();
  }
}

Prefetch::Prefetch(ReaderPtr reader, OrderPtr order, Schedule schedule,
                   std::shared_ptr<BlockPool> blocks, unsigned threads, unsigned depth,
                   std::shared_ptr<Stage> stage)
    : reader_(std::move(reader)),
      order_(std::move(order)),
      schedule_(schedule),
      blocks_(std::move(blocks)),
      stage_(std::move(stage)),
      process_(::getpid()),
      shared_(std::make_unique<Shared>()) {
  if (threads == 0) throw std::invalid_argument("threads must be at least 1");
  if (depth == 0) throw std::invalid_argument("prefetch must be at least 1");
  shared_->slots.resize(depth);
  shared_->threads.reserve(threads);
  try {
    for (unsigned i = 0; i < threads; ++i) shared_->threads.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& e) {
    if (shared_->threads.empty())
      throw std::runtime_error(std::string("no loader thread could be started: ") + e.what());
  }
}

Prefetch::~Prefetch() {
  if (process_ != ::getpid()) {
    (void)shared_.release();  // thread handles that name nobody: neither joinable nor detachable
    return;
  }
  close();
  for (auto& thread : shared_->threads) thread.join();
}

void Prefetch::close() {
  if (process_ != ::getpid()) return;
  std::lock_guard guard(shared_->lock);
  shared_->closed = true;
  shared_->room.notify_all();
  shared_->ready.notify_all();
  shared_->turn.notify_all();
}

std::optional<Prefetch::Batch> Prefetch::next(std::chrono::milliseconds patience) {
  if (process_ != ::getpid())
    throw std::runtime_error("the loader's threads stayed in the parent process");
  Shared& s = *shared_;
  std::unique_lock guard(s.lock);
  const auto came = std::chrono::steady_clock::now();
  const auto mine = [&]() -> Slot& { return s.slots[s.delivered % s.slots.size()]; };
  const auto settled = [&] { return s.closed || mine().ready; };
  if (!settled()) {
    if (patience.count() == 0) return std::nullopt;
    s.asking = true;
    if (stage_) s.turn.notify_one();
    const bool is_there = s.ready.wait_for(guard, patience, settled);
    s.asking = false;
    if (!is_there) return std::nullopt;
  }
  if (s.closed) throw std::runtime_error("the loader was closed");
  Slot slot = std::exchange(mine(), Slot{});
  ++s.delivered;
  // Waking a thread costs the consumer a system call, and more than all the rest: one that sleeps is woken when half of
  // the slots are free, and then has work for a while. One that looks by itself is left alone until the last one is.
  const std::uint64_t waiting = s.claimed - s.delivered;
  const bool wakes = waiting <= (s.watched ? 1 : s.slots.size() / 2);
  s.gap = came - std::exchange(s.left, std::chrono::steady_clock::now());
  guard.unlock();
  if (wakes) s.room.notify_one();
  if (slot.error) std::rethrow_exception(slot.error);
  return std::move(slot.batch);
}

std::uint64_t Prefetch::delivered() const {
  if (process_ != ::getpid()) return 0;  // another thread may have held the lock when this child was forked
  std::lock_guard guard(shared_->lock);
  return shared_->delivered;
}

// False when the work was ended meanwhile.
bool Prefetch::begin_stage(std::uint64_t number, unsigned thread, Slot& made) {
  Shared& s = *shared_;
  for (const bool is_last : {false, true}) {
    try {
      made.batch.result = stage_->begin(number, thread);
      return true;
    } catch (const std::bad_alloc&) {
      if (is_last) made.error = std::current_exception();
    } catch (...) {
      made.error = std::current_exception();
    }
    if (made.error) return true;
    std::unique_lock guard(s.lock);
    s.turn.wait(guard, [&] { return s.closed || (s.asking && s.delivered == number); });
    if (s.closed) return false;
  }
  return true;
}

// Has the rows of a small step asked for, and those of steps behind it; each step once. One thread asks at a time: a page that is read before it was asked for brings many others with it.
void Prefetch::expect(std::uint64_t number) {
  const std::lock_guard asking(shared_->expecting);
  std::uint64_t& next = shared_->expected;
  next = std::max(next, number);
  std::vector<std::int64_t> rows;
  try {
    const auto batch = static_cast<std::uint64_t>(schedule_.step(number).count);
    for (; next <= number || (next - number) * batch < kExpected; ++next) {
      const Schedule::Step step = schedule_.step(next);
      rows.resize(static_cast<std::size_t>(step.count));
      step_rows(*order_, step, rows);
      check_rows(rows, reader_->length());
      reader_->expect(rows);
    }
  } catch (...) {
    // Of a step that may be far ahead: whoever reads it meets the error again.
  }
}

void Prefetch::work(unsigned thread) {
  yield_to_others();
  Shared& s = *shared_;
  std::vector<std::int64_t> rows;
  std::unique_lock guard(s.lock);
  for (;;) {
    std::unique_lock in_order(s.stage_order, std::defer_lock);
    if (stage_) {
      guard.unlock();
      in_order.lock();
      guard.lock();
    }
    const auto has_room = [&] { return s.closed || s.claimed < s.delivered + s.slots.size(); };
    if (!has_room() && !s.watched && s.slots.size() >= 4 && s.gap >= kShortGap && s.gap <= kLongGap) {
      s.watched = true;
      s.room.wait_for(guard, s.gap * (s.slots.size() / 2), [&] { return s.closed || s.claimed - s.delivered <= 1; });
      s.watched = false;
    }
    s.room.wait(guard, has_room);
    if (s.closed) return;
    const std::uint64_t number = s.claimed++;
    guard.unlock();
    Slot made{true, {}, nullptr};
    if (stage_) {
      if (!begin_stage(number, thread, made)) return;
      in_order.unlock();
    }
    if (!made.error) {
      try {
        made.batch.step = schedule_.step(number);
        rows.resize(static_cast<std::size_t>(made.batch.step.count));
        step_rows(*order_, made.batch.step, rows);
        const bool expected = rows.size() < kExpected && reader_->is_cold();
        if (expected) expect(number);
        made.batch.bytes = block_layout(*reader_, rows.size()).back();
        std::byte* place;
        if (stage_) {
          place = stage_->memory(*made.batch.result, made.batch.bytes);
        } else {
          made.batch.block = blocks_->take(made.batch.bytes);
          place = made.batch.block.get();
        }
        read_block(*reader_, rows, place, expected);
        if (stage_) stage_->finish(*made.batch.result);
      } catch (...) {
        made.error = std::current_exception();
        made.batch.result.reset();
      }
    }
    guard.lock();
    s.slots[number % s.slots.size()] = std::move(made);
    if (number == s.delivered) s.ready.notify_one();
  }
}

}  // namespace stepwell
