#include "game2048/runs.hpp"

#include <cstring>

#include "error.hpp"
#include "threads.hpp"

namespace stepwell {
namespace {

RunKind kind_of(const Entry& entry) {
  if (entry.kind != 1 && entry.kind != 2)
    throw FormatError("expected a run (kind 1 or 2), got kind " + std::to_string(entry.kind), "", 0);
  return static_cast<RunKind>(entry.kind);
}

std::vector<RunHead> heads_of(const Entries& runs, unsigned threads) {
  std::vector<RunHead> heads(runs.size());
  share_out(runs.size(), threads, [&](std::size_t i) {
    try {
      runs.naming(i, [&] { heads[i] = read_head(kind_of(runs.entries[i]), runs.payload(i)); });
    } catch (const FormatError&) {
      // Damage is the better explanation.
      runs.check_entry(i);
      if (runs.entries[i].kind == 1) runs.naming(i, [&] { check_own_checksum(runs.payload(i)); });
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

RunBatch decode_runs(const Entries& runs, unsigned threads) {
  const auto heads = heads_of(runs, 1);
  RunBatch batch = lay_out(heads, true);
  share_out(runs.size(), threads, [&](std::size_t i) {
    runs.check_entry(i);
    runs.naming(i, [&] {
      batch.records[i].final_board =
          decode_steps(kind_of(runs.entries[i]), runs.payload(i), heads[i], steps_of(batch, i));
    });
  });
  return batch;
}

RunBatch read_heads(const Entries& runs, unsigned threads) {
  check_entries(runs, threads);
  return lay_out(heads_of(runs, 1), false);
}

}  // namespace stepwell
