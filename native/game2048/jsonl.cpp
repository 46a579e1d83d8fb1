#include "game2048/jsonl.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string_view>

#include "files/checksum.hpp"
#include "game2048/board.hpp"

namespace stepwell {
namespace {

constexpr std::array<std::string_view, 4> kMoveNames{"\"UP\"", "\"DOWN\"", "\"LEFT\"", "\"RIGHT\""};

// The most a line can need, so that its writing needs no checks.
constexpr std::size_t kLineBytes = 512;      // keys and numbers of a run or a step
constexpr std::size_t kRunStepBytes = 128;   // a board, a move and four values inside a run's line
constexpr std::size_t kLetterBytes = 6;      // a control character: \u001f

// Appends to memory that is known to be large enough.
class Pen {
 public:
  explicit Pen(char* at) : at_(at) {}

  void text(std::string_view text) {
    std::memcpy(at_, text.data(), text.size());
    at_ += text.size();
  }

  void letter(char letter) { *at_++ = letter; }

  void number(std::uint64_t value) { at_ = std::to_chars(at_, at_ + 20, value).ptr; }

  // The shortest digits that give this float back; what JSON cannot say is null.
  void number(float value) {
    if (value == 0 && !std::signbit(value)) return text("0.0");
    if (!std::isfinite(value)) return text("null");
    const char* begin = at_;
    at_ = std::to_chars(at_, at_ + 32, value).ptr;
    if (std::string_view(begin, at_).find_first_of(".e") == std::string_view::npos) text(".0");
  }

  void hex(std::uint64_t value, int digits) {
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4)
      letter("0123456789abcdef"[value >> shift & 15]);
  }

  void board(std::uint64_t board, bool as_hex) {
    if (!as_hex) return number(board);
    letter('"');
    hex(board, 16);
    letter('"');
  }

  void quoted(std::string_view string) {
    letter('"');
    for (const char c : string) {
      const auto code = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        letter('\\');
        letter(c);
      } else if (code >= 0x20) {
        letter(c);
      } else if (const auto at = std::string_view("\b\f\n\r\t").find(c); at != std::string_view::npos) {
        letter('\\');
        letter("bfnrt"[at]);
      } else {
        text("\\u00");
        hex(code, 2);
      }
    }
    letter('"');
  }

  // The 16 exponents, separated by commas.
  void exponents(std::uint64_t board) {
    for (int shift = 60; shift >= 0; shift -= 4) {
      const unsigned cell = board >> shift & 15;
      if (cell >= 10) letter('1');
      letter(static_cast<char>('0' + (cell >= 10 ? cell - 10 : cell)));
      if (shift) letter(',');
    }
  }

  char* at() const { return at_; }

 private:
  char* at_;
};

struct View {
  const RunRecord& record;
  std::string_view engine;
  const std::uint64_t* boards;
  const float* values;
  const std::uint8_t *moves, *legal, *has_branches;
};

View view_of(const RunBatch& batch, std::size_t i) {
  const std::byte* block = batch.block.get();
  const std::int64_t at = batch.offsets[i];
  const auto bytes = [&](std::size_t column) {
    return reinterpret_cast<const std::uint8_t*>(block + batch.layout[column]) + at;
  };
  const auto* engines = reinterpret_cast<const char*>(block + batch.layout[5]);
  return {batch.records[i],
          {engines + batch.engine_offsets[i], engines + batch.engine_offsets[i + 1]},
          reinterpret_cast<const std::uint64_t*>(block + batch.layout[0]) + at,
          reinterpret_cast<const float*>(block + batch.layout[1]) + 4 * at,
          bytes(2), bytes(3), bytes(4)};
}

void write_meta(Pen& pen, const View& run, bool hex) {
  pen.text(",\"steps\":"), pen.number(std::uint64_t{run.record.steps});
  pen.text(",\"start_unix_s\":"), pen.number(run.record.start_unix_s);
  pen.text(",\"elapsed_s\":"), pen.number(run.record.elapsed_s);
  pen.text(",\"max_score\":"), pen.number(run.record.max_score);
  pen.text(",\"highest_tile\":"), pen.number(std::uint64_t{run.record.highest_tile});
  pen.text(",\"final_board\":"), pen.board(run.record.final_board, hex);
}

void write_engine(Pen& pen, const View& run) {
  pen.text(",\"engine\":");
  run.record.has_engine ? pen.quoted(run.engine) : pen.text("null");
}

// What each line of a step, and that of a run's end, begins with.
void write_name(Pen& pen, std::uint64_t number, std::uint32_t checksum) {
  pen.text("{\"run_idx\":"), pen.number(number);
  pen.text(",\"run_uuid\":\"a2r-"), pen.hex(checksum, 8);
  pen.letter('-'), pen.hex(number & 0xffffffff, 8), pen.letter('"');
}

void write_end(Pen& pen, const View& run, std::uint64_t number, std::uint32_t checksum, bool hex) {
  write_name(pen, number, checksum);
  write_meta(pen, run, hex);
  write_engine(pen, run);
  pen.text("}\n");
}

void write_run(Pen& pen, const View& run, std::uint64_t number, bool hex) {
  const std::size_t steps = run.record.steps;
  pen.text("{\"run_idx\":"), pen.number(number);
  write_meta(pen, run, hex);
  pen.text(",\"states\":[");
  for (std::size_t i = 0; i < steps; ++i) pen.board(run.boards[i], hex), pen.letter(',');
  pen.board(run.record.final_board, hex);
  pen.text("],\"moves\":[");
  for (std::size_t i = 0; i < steps; ++i) {
    if (i) pen.letter(',');
    pen.text(kMoveNames[run.moves[i]]);
  }
  pen.letter(']');
  write_engine(pen, run);
  pen.text(",\"branches\":");
  if (steps == 0 || std::memchr(run.has_branches, 1, steps) == nullptr) {
    pen.text("null}\n");
    return;
  }
  for (std::size_t i = 0; i < steps; ++i) {
    pen.letter(i ? ',' : '[');
    if (!run.has_branches[i]) {
      pen.text("null");
      continue;
    }
    for (unsigned m = 0; m < 4; ++m) {
      pen.letter(m ? ',' : '[');
      run.legal[i] >> m & 1 ? pen.number(run.values[4 * i + m]) : pen.text("null");
    }
    pen.letter(']');
  }
  pen.text("]}\n");
}

// The value of a branch. The best one is stored just below 1.
void write_value(Pen& pen, const View& run, std::size_t i, unsigned m) {
  const float value = run.values[4 * i + m];
  pen.number(m == run.moves[i] && value > 1 - 1e-6 ? 1.0f : value);
}

// Where a step has no branches, moves are legal by its board, and their values are not known.
void write_branches(Pen& pen, const View& run, std::size_t i) {
  const unsigned legal = run.has_branches[i] ? run.legal[i] : legal_mask(run.boards[i]);
  for (unsigned m = 0; m < 4; ++m) {
    pen.letter(m ? ',' : '[');
    if (!(legal >> m & 1)) {
      pen.text("{\"legal\":false,\"value\":0.0}");
      continue;
    }
    pen.text("{\"legal\":true,\"value\":");
    run.has_branches[i] ? write_value(pen, run, i, m) : pen.text("null");
    pen.letter('}');
  }
  pen.letter(']');
}

void write_seed_branches(Pen& pen, const View& run, std::size_t i) {
  if (!run.has_branches[i]) return pen.text("null");
  for (unsigned m = 0; m < 4; ++m) {
    pen.letter(m ? ',' : '[');
    run.legal[i] >> m & 1 ? write_value(pen, run, i, m) : pen.text("null");
  }
  pen.letter(']');
}

void write_steps(Pen& pen, const View& run, std::uint64_t number, std::uint32_t checksum, bool seed, bool hex) {
  char head[96];  // the same in every line of the run
  Pen start(head);
  write_name(start, number, checksum);
  start.text(",\"step_idx\":");
  const std::string_view same(head, start.at());
  for (std::size_t i = 0; i < run.record.steps; ++i) {
    pen.text(same), pen.number(std::uint64_t{i});
    if (seed) {
      pen.text(",\"pre_board\":"), pen.board(run.boards[i], hex), pen.text(",\"chosen\":");
    } else {
      pen.text(",\"pre_board\":["), pen.exponents(run.boards[i]), pen.text("],\"chosen\":");
    }
    pen.text(kMoveNames[run.moves[i]]);
    pen.text(",\"branches\":");
    seed ? write_seed_branches(pen, run, i) : write_branches(pen, run, i);
    pen.text("}\n");
  }
}

}  // namespace

Text to_jsonl(const Entries& runs, JsonlShape shape, bool ends, bool hex) {
  const RunBatch batch = decode_runs(runs, 1);
  const bool by_step = shape == JsonlShape::step || shape == JsonlShape::seed_step;
  const auto steps = static_cast<std::size_t>(batch.offsets.back());
  const auto letters = static_cast<std::size_t>(batch.engine_offsets.back());
  const std::size_t lines = (shape == JsonlShape::run) + ends;  // of a run, each with its engine
  const std::size_t limit = lines * (runs.size() * kLineBytes + letters * kLetterBytes) +
                            steps * (by_step ? kLineBytes : shape == JsonlShape::run ? kRunStepBytes : 0);
  Text out{shared_blocks()->take(limit + 1), 0};
  auto* begin = reinterpret_cast<char*>(out.block.get());
  Pen pen(begin);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const View run = view_of(batch, i);
    const auto number = static_cast<std::uint64_t>(runs.numbers[i]);
    const std::uint32_t checksum = by_step || ends ? crc32c(0, runs.payload(i)) : 0;
    if (shape == JsonlShape::run) write_run(pen, run, number, hex);
    if (by_step) write_steps(pen, run, number, checksum, shape == JsonlShape::seed_step, hex);
    if (ends) write_end(pen, run, number, checksum, hex);
  }
  out.bytes = static_cast<std::size_t>(pen.at() - begin);
  return out;
}

}  // namespace stepwell
