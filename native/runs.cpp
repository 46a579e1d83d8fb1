#include "runs.hpp"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>

#include "checksum.hpp"
#include "error.hpp"
#include "threads.hpp"

namespace stepwell {
namespace {

std::string hex(std::uint32_t sum) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", sum);
  return text;
}

// What is wrong inside a run, said in terms of the file.
template <class Work>
void naming_run(const Entries& runs, std::size_t i, Work&& work) {
  const auto prefix = [&] { return "run " + std::to_string(runs.numbers[i]) + ": "; };
  try {
    work();
  } catch (const ChecksumError& e) {
    throw ChecksumError(prefix() + e.what(), runs.path, runs.entries[i].offset + e.offset);
  } catch (const FormatError& e) {
    throw FormatError(prefix() + e.what(), runs.path, runs.entries[i].offset + e.offset);
  }
}

RunKind kind_of(const Entry& entry) {
  if (entry.kind != 1 && entry.kind != 2)
    throw FormatError("expected a run (kind 1 or 2), got kind " + std::to_string(entry.kind), "", 0);
  return static_cast<RunKind>(entry.kind);
}

std::vector<RunHead> heads_of(const Entries& runs, unsigned threads) {
  std::vector<RunHead> heads(runs.size());
  share_out(runs.size(), threads, [&](std::size_t i) {
    try {
      naming_run(runs, i, [&] { heads[i] = read_head(kind_of(runs.entries[i]), runs.payload(i)); });
    } catch (const FormatError&) {
      runs.check_sum(i);  // damage is the better explanation
      throw;
    }
  });
  return heads;
}

// Everything but the steps, and memory for as many of those as `with_steps` asks for.
RunBatch lay_out(const std::vector<RunHead>& heads, bool with_steps) {
  RunBatch batch;
  std::int64_t steps = 0, letters = 0;
  batch.offsets.push_back(0);
  batch.engine_offsets.push_back(0);
  for (const RunHead& head : heads) {
    batch.records.push_back({head.start_unix_s, head.max_score, 0, head.steps, head.highest_tile,
                             head.elapsed_s, head.has_engine});
    batch.offsets.push_back(steps += with_steps ? head.steps : 0);
    batch.engine_offsets.push_back(letters += static_cast<std::int64_t>(head.engine.size()));
  }
  std::size_t at = 0;
  const auto count = static_cast<std::size_t>(steps);
  for (const std::size_t bytes : {8 * count, 16 * count, count, count, count}) {
    batch.layout.push_back(at);
    at += (bytes + 63) / 64 * 64;
  }
  batch.layout.push_back(at);
  batch.layout.push_back(at + static_cast<std::size_t>(letters));
  batch.block = shared_blocks()->take(batch.layout.back());
  std::byte* engines = batch.block.get() + at;
  for (const RunHead& head : heads) {
    if (!head.engine.empty()) std::memcpy(engines, head.engine.data(), head.engine.size());
    engines += head.engine.size();
  }
  return batch;
}

StepsOut steps_of(const RunBatch& batch, std::size_t i) {
  std::byte* block = batch.block.get();
  const auto at = static_cast<std::size_t>(batch.offsets[i]);
  const auto bytes = [&](std::size_t column) {
    return reinterpret_cast<std::uint8_t*>(block + batch.layout[column]) + at;
  };
  return {reinterpret_cast<std::uint64_t*>(block + batch.layout[0]) + at,
          reinterpret_cast<float*>(block + batch.layout[1]) + 4 * at, bytes(2), bytes(3), bytes(4)};
}

}  // namespace

std::span<const std::byte> Entries::payload(std::size_t i) const {
  const Entry& entry = entries[i];
  if (entry.offset > file.size() || entry.length > file.size() - entry.offset)
    throw FormatError("expected " + std::to_string(entry.length) + " bytes at " +
                          std::to_string(entry.offset) + ", the file has " + std::to_string(file.size()),
                      "", 0);
  return file.subspan(entry.offset, entry.length);
}

void Entries::check_sum(std::size_t i) const {
  if (entries[i].sum == 0) return;
  naming_run(*this, i, [&] {
    const std::uint32_t found = crc32c(0, payload(i));
    if (found != entries[i].sum)
      throw ChecksumError("expected CRC32C " + hex(entries[i].sum) + ", got " + hex(found), "", 0);
  });
}

void share_out(std::size_t count, unsigned threads, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::atomic<std::size_t> failed{std::numeric_limits<std::size_t>::max()};
  std::mutex mutex;
  std::exception_ptr error;
  // Numbers are handed out in order, so everything below a failure has been begun.
  const auto loop = [&](std::size_t) {
    for (std::size_t i; (i = next.fetch_add(1)) < count && i < failed.load();) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed.load()) {
          failed = i;
          error = std::current_exception();
        }
      }
    }
  };
  if (threads <= 1 || count <= 1)
    loop(0);
  else
    shared_pool().run(std::min<std::size_t>(threads, count), loop);
  if (error) std::rethrow_exception(error);
}

void check_sums(const Entries& runs, unsigned threads) {
  share_out(runs.size(), threads, [&](std::size_t i) { runs.check_sum(i); });
}

RunBatch decode_runs(const Entries& runs, unsigned threads) {
  const auto heads = heads_of(runs, 1);
  RunBatch batch = lay_out(heads, true);
  share_out(runs.size(), threads, [&](std::size_t i) {
    runs.check_sum(i);
    naming_run(runs, i, [&] {
      batch.records[i].final_board =
          decode_steps(kind_of(runs.entries[i]), runs.payload(i), heads[i], steps_of(batch, i));
    });
  });
  return batch;
}

RunBatch read_heads(const Entries& runs, unsigned threads) {
  check_sums(runs, threads);
  return lay_out(heads_of(runs, 1), false);
}

}  // namespace stepwell
