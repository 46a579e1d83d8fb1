// Threads against threads, for ThreadSanitizer: `make sanitize` builds and runs this.
// The core is used without Python here, as any C++ program could.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cuda/convoy.hpp"
#include "loader/prefetch.hpp"
#include "stores/lane.hpp"
#include "stores/readahead.hpp"
#include "stores/row_buffer.hpp"
#include "stores/upcasts.hpp"
#include "threads.hpp"

using namespace stepwell;

namespace {

constexpr std::int64_t kRows = 100'000;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

template <class Work>
void on_threads(int count, Work work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work);
  for (auto& thread : threads) thread.join();
}

// Whole epochs come in order while blocks are returned by another thread.
void prefetch_in_order(const ReaderPtr& reader, const OrderPtr& order) {
  const Schedule schedule(kRows, 999, 0, 1, false, 0, 0);
  Prefetch prefetch(reader, order, schedule, shared_blocks(), 4, 3);
  std::vector<std::int64_t> expected(kRows);
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    order->rows(epoch, 0, expected);
    for (std::int64_t at = 0; at < kRows;) {
      auto batch = prefetch.next(std::chrono::seconds(60));
      expect(batch.has_value(), "a batch arrives");
      const auto* values = reinterpret_cast<const std::int64_t*>(batch->block.get());
      for (std::int64_t i = 0; i < batch->step.count; ++i)
        expect(values[i] == expected[static_cast<std::size_t>(at + i)], "rows in order");
      at += batch->step.count;
      if (at % 7 == 0) std::thread([block = std::move(batch->block)] {}).join();
    }
  }
}

// Closing while a consumer waits ends both.
void close_while_waiting(const ReaderPtr& reader, const OrderPtr& order) {
  const Schedule schedule(kRows, 50'000, 0, 1, false, 0, 0);
  Prefetch prefetch(reader, order, schedule, shared_blocks(), 2, 1);
  std::thread closer([&] { prefetch.close(); });
  try {
    while (prefetch.next(std::chrono::seconds(60))) {
    }
  } catch (const std::runtime_error&) {
  }
  closer.join();
}

// Batches that cross to a device, the fake one, are let go of by other threads while copies go on.
void feed_a_device(const ReaderPtr& reader, const OrderPtr& order) {
  const Schedule schedule(kRows, 999, 0, 1, false, 0, 0);
  const std::vector<cuda::Feed::Field> fields{{"i", 0, 64, {}}};
  const auto feed = std::make_shared<cuda::Feed>(0, fields, 999, 4, 4, 4);
  Prefetch prefetch(reader, order, schedule, shared_blocks(), 4, 8, std::make_shared<cuda::Convoy>(feed));
  std::uint64_t number = 0;
  for (int i = 0; i < 100; ++i) {
    std::vector<std::unique_ptr<Stage::Result>> group;
    const unsigned count = cuda::Convoy::span_of(number, 4).count;
    for (; group.size() < count; ++number) {
      auto batch = prefetch.next(std::chrono::seconds(60));
      expect(batch && batch->result, "a batch arrives");
      group.push_back(std::move(batch->result));
    }
    auto& made = *dynamic_cast<cuda::Convoy::Batch&>(*group[0]).group;
    if (i % 3 == 0)
      feed->hand_over(made, std::nullopt);
    else if (i % 3 == 1)
      feed->hand_over(made, cuda::Stream{});
    if (i % 7 == 0) feed->trim();
    std::thread([all = std::move(group)] {}).join();
  }
}

// Many callers of one pool: every piece once, exceptions to their own caller.
void pool_shared_by_callers() {
  ThreadPool pool(3);
  on_threads(4, [&] {
    for (int i = 0; i < 2000; ++i) {
      std::atomic<int> done{0};
      pool.run(17, [&](std::size_t) { ++done; });
      expect(done == 17, "every piece once");
      bool caught = false;
      try {
        pool.run(9, [](std::size_t piece) {
          if (piece == 4) throw std::runtime_error("piece");
        });
      } catch (const std::runtime_error&) {
        caught = true;
      }
      expect(caught, "the exception of a piece");
    }
  });
}

void reads_at_once(const Reader& reader, const Order& order) {
  on_threads(4, [&] {
    std::vector<std::int64_t> rows(5000), out(5000);
    for (std::uint64_t epoch = 0; epoch < 100; ++epoch) {
      order.rows(epoch, 0, rows);
      std::byte* outs[] = {reinterpret_cast<std::byte*>(out.data())};
      read(reader, rows, outs);
      expect(out == rows, "the rows asked for");
    }
  });
}

// A frame is made of its number; readers see whole ones only, and the last one.
void lane_seen_by_many() {
  constexpr std::uint32_t words = 64;
  constexpr std::uint64_t frames = 20'000;
  const std::string name = "stepwell-race-" + std::to_string(getpid());
  LaneWriter writer(name, 3, words * 8, 1, 1, 0, 8);
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i)
    readers.emplace_back([lane = LaneReader(name)] {
      std::vector<std::uint64_t> seen(words);
      std::uint64_t last = 0;
      while (last < frames) {
        const std::uint64_t head = lane.head();
        if (head == last) lane.wait(head, std::chrono::milliseconds(10));
        const auto found = lane.read(head, std::as_writable_bytes(std::span(seen)));
        if (!found) continue;
        for (const std::uint64_t word : seen) expect(word == head, "a whole frame");
        expect(found->metrics.reward == static_cast<double>(head), "its own metrics");
        expect(head >= last && !lane.closed(), "frames in order of a writer that lives");
        last = head;
      }
    });
  std::vector<std::uint64_t> frame(words);
  for (std::uint64_t number = 1; number <= frames; ++number) {
    std::fill(frame.begin(), frame.end(), number);
    writer.publish(std::as_bytes(std::span(frame)), {}, {static_cast<double>(number), 0, 0});
  }
  for (auto& reader : readers) reader.join();
}

// A file is read to its end while a thread goes ahead, or rests.
void read_ahead() {
  constexpr std::size_t size = std::size_t{16} << 20, step = 300'000;
  std::FILE* const file = std::tmpfile();
  const std::vector<char> content(size, 7);
  expect(file && std::fwrite(content.data(), 1, size, file) == size && std::fflush(file) == 0, "a file");
  void* const memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, fileno(file), 0);
  expect(memory != MAP_FAILED, "a mapping");
  const std::span bytes(static_cast<const std::byte*>(memory), size);
  const auto checksums = stream_checksums(bytes.first(size / 3), 4096, 0, 0);
  for (const bool mapped : {false, true})
    for (const std::size_t window : {1, 1 << 16, 1 << 22}) {
      const auto blocks = std::make_shared<const CheckedBlocks>(
          bytes.first(size / 3), 4096, 0, 0, std::as_bytes(std::span(checksums)), std::vector<std::byte>{},
          CheckedBlocks::Where{"a", 0, "a"}, nullptr);
      const std::size_t first = window % step;
      Readahead ahead({{bytes.first(size / 3), "a", 0, blocks}, {bytes.subspan(size / 3), "b", 0}}, window, mapped,
                      first);
      Readahead::Watch watch;
      for (std::size_t at = first; at < size; at += step) {
        const auto part = bytes.subspan(at, std::min(step, size - at));
        ahead.wait(at, at + part.size(), watch);
        if (at + part.size() <= size / 3) blocks->check(at, at + part.size());
        expect(std::ranges::count(part, std::byte{7}) == std::ssize(part), "bytes that are read");
      }
    }
  for (const unsigned threads : {1, 2, 5})
    for (const std::size_t window : {std::size_t{1}, size}) {
      const Cuts cuts({{bytes.first(size / 8 * 4), "a", 0}, {bytes.last(size / 8 * 4), "b", 0}}, 0, step);
      for (int last : {1000, 1}) {  // some are left before the end
        Upcasts upcasts(cuts, window, FloatKind::kF32, true, threads);
        const auto seven = static_cast<double>(std::bit_cast<float>(0x07070707));
        for (std::optional<Upcasts::Batch> batch; last-- && (batch = upcasts.next());) {
          const std::span values(reinterpret_cast<const double*>(batch->block.get()), batch->values);
          expect(std::ranges::count(values, seven) == std::ssize(values), "values that are made");
        }
      }
    }
  munmap(memory, size);
  std::fclose(file);
}

// One thread puts rows, another one packs, releases and makes memory for more.
void rows_that_wait() {
  constexpr std::uint64_t first = 1'000'003, rows = 20'000;
  constexpr std::size_t size = 5000;
  RowBuffer buffer(size, first);
  std::atomic<std::uint64_t> there{first};
  std::thread writer([&] {
    for (std::uint64_t done = first; done < first + rows;) {
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(there.load() - done, 100));
      const PackedRows packed(buffer.lend(done, count), Codec::kRaw, 0, 1, done % 2 == 0);
      for (std::size_t i = 0; i < count; ++i) {
        const auto value = static_cast<std::byte>((done + i) % 251);
        const Bytes stored = packed.stored(i);
        expect(std::ranges::count(stored, value) == std::ssize(stored), "rows as they were put");
      }
      done += count;
      buffer.release(done);
      buffer.reserve(100);
      expect(buffer.kept_bytes() > 0, "memory");
    }
  });
  std::vector<std::byte> row(size);
  for (std::uint64_t i = first; i < first + rows; ++i) {
    std::ranges::fill(row, static_cast<std::byte>(i % 251));
    buffer.put(i, row);
    there = i + 1;
  }
  writer.join();
}

}  // namespace

int main() {
  std::vector<std::int64_t> data(kRows);
  std::iota(data.begin(), data.end(), 0);
  const Table table{reinterpret_cast<const std::byte*>(data.data()), kRows, 8, 8};
  const ReaderPtr reader = table_reader(table, {{0, 8}}, nullptr);
  const OrderPtr order = shuffle_order(kRows, 7);
  prefetch_in_order(reader, order);
  for (int i = 0; i < 50; ++i) close_while_waiting(reader, order);
  feed_a_device(reader, order);
  pool_shared_by_callers();
  reads_at_once(*reader, *order);
  lane_seen_by_many();
  read_ahead();
  rows_that_wait();
  std::puts("no race found");
}
