// One recorded 2048 game and its two encodings, as docs/formats/runs.md has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace stepwell {

enum class RunKind : std::uint16_t { v1 = 1, v2 = 2 };

// What stands before the steps. `engine` lies inside the payload.
struct RunHead {
  std::uint32_t steps;
  std::uint64_t start_unix_s;
  float elapsed_s;
  std::uint64_t max_score;
  std::uint32_t highest_tile;
  bool has_engine;
  std::string_view engine;
  std::size_t body;  // where the steps begin
};

// The steps of a run, one array per column. Bit m of `legal` and value m belong to move m; both
// are 0 where a step has no branches.
template <class U64, class F32, class U8>
struct StepArrays {
  U64* boards;
  F32* values;  // four a step
  U8* moves;
  U8* legal;
  U8* has_branches;
};
using StepsOut = StepArrays<std::uint64_t, float, std::uint8_t>;
using StepsIn = StepArrays<const std::uint64_t, const float, const std::uint8_t>;

// v1 if the payload begins like one, else v2: only v1 has a magic.
RunKind run_kind(std::span<const std::byte> payload);

// Throws ChecksumError when the checksum at the end of a v1 payload is not that of the rest.
void check_own_checksum(std::span<const std::byte> payload);

// Reads the head alone; `steps` is then known to fit the payload. Throws FormatError (without
// a path, the offset from the payload's start), here and below.
RunHead read_head(RunKind kind, std::span<const std::byte> payload);

// Decodes the steps into arrays of head.steps elements and returns the final board. Every rule
// of the format is checked; a v1 payload's own checksum too (ChecksumError).
std::uint64_t decode_steps(RunKind kind, std::span<const std::byte> payload, const RunHead& head,
                           const StepsOut& out);

// The payload of a run. v1 has no branches: they are left out. Throws std::invalid_argument
// for what the encoding cannot say: a move above 3, a v1 engine longer than 65,535 bytes.
std::vector<std::byte> encode_run(RunKind kind, const RunHead& head, const StepsIn& steps,
                                  std::uint64_t final_board);

}  // namespace stepwell
