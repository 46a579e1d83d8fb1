#include "game2048/runs.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>

#include "entries.hpp"

namespace stepwell::bind {

namespace {

using Decoded = std::tuple<NumpyBytes, NumpyBytes, NumpyBytes, std::vector<std::size_t>, NumpyBytes>;

template <auto read>
Decoded run(BytesIn file, BytesIn table, RowsIn numbers, nb::object path, unsigned threads) {
  const EntriesIn in(file, table, numbers, path);
  RunBatch batch;
  {
    const Unlocked unlocked;
    batch = read(in.entries, threads);
  }
  const std::size_t bytes = batch.layout.back();
  return {bytes_of(batch.records), bytes_of(batch.offsets), bytes_of(batch.engine_offsets), batch.layout,
          numpy_bytes(std::move(batch.block), bytes)};
}

nb::bytes encode(int kind, std::tuple<std::uint64_t, std::uint32_t, std::uint64_t, std::uint32_t> numbers,
                 std::optional<nb::bytes> engine, In<std::uint64_t> boards, In<float> values,
                 In<std::uint8_t> moves, In<std::uint8_t> legal,
                 In<std::uint8_t> has_branches, std::uint64_t final_board) {
  const std::size_t steps = boards.size();
  if (steps > 0xffffffff) throw std::invalid_argument("a run has at most 2**32 - 1 steps");
  if (values.size() != 4 * steps || moves.size() != steps || legal.size() != steps ||
      has_branches.size() != steps)
    throw std::invalid_argument("columns of unequal length");
  if (kind != 1 && kind != 2) throw std::invalid_argument("kind must be 1 or 2");
  RunHead head{};
  head.steps = static_cast<std::uint32_t>(steps);
  std::uint32_t elapsed_bits;
  std::tie(head.start_unix_s, elapsed_bits, head.max_score, head.highest_tile) = numbers;
  std::memcpy(&head.elapsed_s, &elapsed_bits, sizeof elapsed_bits);
  head.has_engine = engine.has_value();
  if (engine) head.engine = {engine->c_str(), engine->size()};
  const auto payload =
      encode_run(static_cast<RunKind>(kind), head,
                 {boards.data(), values.data(), moves.data(), legal.data(), has_branches.data()},
                 final_board);
  return nb::bytes(payload.data(), payload.size());
}

}  // namespace

void bind_runs(nb::module_& m) {
  m.def("run_kind", [](BytesIn payload) { return static_cast<int>(run_kind(span_of(payload))); },
        "payload"_a.noconvert(), "1 or 2: how this run is encoded.");
  m.def("decode_runs", &run<&decode_runs>, "file"_a.noconvert(), "entries"_a.noconvert(),
        "numbers"_a.noconvert(), "path"_a, "threads"_a,
        "Entries decoded: records, offsets of steps and of engine names, where each column begins\n"
        "in the block, the block.");
  m.def("read_heads", &run<&read_heads>, "file"_a.noconvert(), "entries"_a.noconvert(),
        "numbers"_a.noconvert(), "path"_a, "threads"_a, "The same without steps and final boards.");
  m.def("encode_run", &encode, "kind"_a, "numbers"_a, "engine"_a.none(), "boards"_a.noconvert(),
        "values"_a.noconvert(), "moves"_a.noconvert(), "legal"_a.noconvert(),
        "has_branches"_a.noconvert(), "final_board"_a,
        "The payload of a run; `numbers` are start_unix_s, the bits of elapsed_s, max_score and\n"
        "highest_tile.");
}

}  // namespace stepwell::bind
