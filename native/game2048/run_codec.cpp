#include "game2048/run_codec.hpp"

#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

#include "error.hpp"
#include "files/checksum.hpp"

namespace stepwell {
namespace {

constexpr std::size_t kHeadV1 = 36;       // up to the engine
constexpr std::size_t kSmallestStep = 3;  // v2: board, move, no branches
constexpr std::size_t kLargestStep = 32;  // v2: board of ten bytes, move, four legal branches

[[noreturn]] void refuse(const std::string& message, std::size_t at) {
  throw FormatError(message, "", at);
}

template <class T>
T load(const std::byte* from) {
  static_assert(std::endian::native == std::endian::little, "the formats are little-endian");
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Reads from the front of a payload; every read is checked.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, std::size_t at) : bytes_(bytes), at_(at) {}

  std::size_t at() const { return at_; }
  std::size_t left() const { return bytes_.size() - at_; }
  const std::byte* here() const { return bytes_.data() + at_; }
  void skip(std::size_t count) { at_ += count; }

  template <class T>
  T fixed(const char* what) {
    need(sizeof(T), what);
    const T value = load<T>(here());
    at_ += sizeof(T);
    return value;
  }

  // A postcard varint of at most `bits` bits.
  std::uint64_t varint(unsigned bits, const char* what) {
    const std::size_t begin = at_;
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < bits; shift += 7) {
      const std::uint64_t byte = fixed<std::uint8_t>(what);
      const std::uint64_t part = byte & 0x7f;
      if (bits - shift < 7 && part >> (bits - shift)) break;
      value |= part << shift;
      if (byte < 0x80) return value;
    }
    refuse(std::string(what) + ": expected a varint of " + std::to_string(bits) + " bits, got a larger one",
           begin);
  }

  std::uint32_t below(std::uint32_t end, const char* what) {
    const std::size_t begin = at_;
    const std::uint64_t value = varint(32, what);
    if (value >= end)
      refuse(std::string(what) + ": expected 0 to " + std::to_string(end - 1) + ", got " +
                 std::to_string(value),
             begin);
    return static_cast<std::uint32_t>(value);
  }

  // Options are one byte, not a varint.
  bool option(const char* what) {
    const auto byte = fixed<std::uint8_t>(what);
    if (byte > 1) refuse(std::string(what) + ": expected 0 or 1, got " + std::to_string(byte), at_ - 1);
    return byte == 1;
  }

  std::string_view text(std::uint64_t length, const char* what) {
    need(length, what);
    const std::string_view found(reinterpret_cast<const char*>(here()), length);
    at_ += length;
    return found;
  }

 private:
  void need(std::uint64_t count, const char* what) {
    if (count > left())
      refuse(std::string(what) + ": truncated: expected " + std::to_string(count) + " more bytes, got " +
                 std::to_string(left()),
             at_);
  }

  std::span<const std::byte> bytes_;
  std::size_t at_;
};

// Where the first byte that is not UTF-8 stands, or npos.
std::size_t find_bad_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(text[k]); };
    const unsigned char first = byte(i);
    if (first < 0x80) {
      ++i;
      continue;
    }
    const unsigned more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    if (first < 0xc2 || first > 0xf4 || i + more >= text.size()) return i;
    for (unsigned k = 1; k <= more; ++k)
      if ((byte(i + k) & 0xc0) != 0x80) return i;
    const unsigned char second = byte(i + 1);  // overlong forms, surrogates, beyond U+10FFFF
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
        (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f))
      return i;
    i += more + 1;
  }
  return std::string_view::npos;
}

void check_utf8(std::string_view text, std::size_t at) {
  const std::size_t bad = find_bad_utf8(text);
  if (bad != std::string_view::npos) refuse("engine: expected UTF-8", at + bad);
}

RunHead read_head_v1(std::span<const std::byte> payload) {
  Cursor in(payload, 0);
  if (in.text(4, "magic") != "A2T1") refuse("magic: expected A2T1", 0);
  const auto version = in.fixed<std::uint8_t>("version");
  if (version != 1) refuse("version: expected 1, got " + std::to_string(version), 4);
  const auto endianness = in.fixed<std::uint8_t>("endianness");
  if (endianness != 0) refuse("endianness: expected 0, got " + std::to_string(endianness), 5);
  RunHead head{};
  head.steps = in.fixed<std::uint32_t>("steps");
  head.start_unix_s = in.fixed<std::uint64_t>("start_unix_s");
  head.elapsed_s = in.fixed<float>("elapsed_s");
  head.max_score = in.fixed<std::uint64_t>("max_score");
  head.highest_tile = in.fixed<std::uint32_t>("highest_tile");
  const auto length = in.fixed<std::uint16_t>("engine");
  head.has_engine = true;
  head.engine = in.text(length, "engine");
  check_utf8(head.engine, kHeadV1);
  head.body = in.at();
  const std::uint64_t expected = std::uint64_t{9} * head.steps + 12;
  if (in.left() != expected)
    refuse("expected " + std::to_string(expected) + " bytes for " + std::to_string(head.steps) +
               " steps, got " + std::to_string(in.left()),
           in.at());
  return head;
}

std::uint64_t decode_steps_v1(std::span<const std::byte> payload, const RunHead& head,
                              const StepsOut& out) {
  const std::size_t steps = head.steps;
  check_own_checksum(payload);
  const std::byte* boards = payload.data() + head.body;
  const std::byte* moves = boards + 8 * (steps + 1);
  std::memcpy(out.boards, boards, 8 * steps);
  std::memcpy(out.moves, moves, steps);
  for (std::size_t i = 0; i < steps; ++i)
    if (out.moves[i] > 3)
      refuse("move: expected 0 to 3, got " + std::to_string(out.moves[i]),
             head.body + 8 * (steps + 1) + i);
  std::memset(out.legal, 0, steps);
  std::memset(out.has_branches, 0, steps);
  std::memset(out.values, 0, 16 * steps);
  return load<std::uint64_t>(boards + 8 * steps);
}

RunHead read_head_v2(std::span<const std::byte> payload) {
  Cursor in(payload, 0);
  RunHead head{};
  head.steps = static_cast<std::uint32_t>(in.varint(32, "steps"));
  head.start_unix_s = in.varint(64, "start_unix_s");
  head.elapsed_s = in.fixed<float>("elapsed_s");
  head.max_score = in.varint(64, "max_score");
  head.highest_tile = static_cast<std::uint32_t>(in.varint(32, "highest_tile"));
  head.has_engine = in.option("engine");
  if (head.has_engine) {
    const std::uint64_t length = in.varint(64, "engine");
    const std::size_t at = in.at();
    head.engine = in.text(length, "engine");
    check_utf8(head.engine, at);
  }
  const std::size_t at = in.at();
  const std::uint64_t steps = in.varint(64, "steps");
  if (steps != head.steps)
    refuse("steps: expected " + std::to_string(head.steps) + " as in the head, got a list of " +
               std::to_string(steps),
           at);
  if (steps > in.left() / kSmallestStep)
    refuse(std::to_string(steps) + " steps do not fit into " + std::to_string(in.left()) + " bytes", at);
  head.body = in.at();
  return head;
}

// One step, every byte checked: the last ones of a run, and any that is not as usual.
void decode_step(Cursor& in, std::size_t i, const StepsOut& out) {
  out.boards[i] = in.varint(64, "board");
  out.moves[i] = static_cast<std::uint8_t>(in.below(4, "move"));
  out.has_branches[i] = in.option("branches");
  out.legal[i] = 0;
  for (unsigned m = 0; m < 4; ++m) {
    out.values[4 * i + m] = 0;
    if (!out.has_branches[i] || in.below(2, "branch") == 1) continue;
    out.values[4 * i + m] = in.fixed<float>("branch");
    out.legal[i] |= static_cast<std::uint8_t>(1u << m);
  }
}

// The 7-bit groups of up to eight varint bytes, put together.
std::uint64_t join_groups(std::uint64_t bytes) {
  bytes &= 0x7f7f7f7f7f7f7f7f;
  bytes = (bytes & 0x007f007f007f007f) | (bytes & 0x7f007f007f007f00) >> 1;
  bytes = (bytes & 0x00003fff00003fff) | (bytes & 0x3fff00003fff0000) >> 2;
  return (bytes & 0x000000000fffffff) | (bytes & 0x0fffffff00000000) >> 4;
}

// A step as encoders write it, with at least kLargestStep readable bytes before it ends.
// Returns the bytes used, or 0 when the step is unusual and has to be looked at closely.
inline std::size_t decode_usual_step(const std::byte* at, std::size_t i, const StepsOut& out) {
  const std::byte* p = at;
  const auto word = load<std::uint64_t>(p);
  const std::uint64_t ends = ~word & 0x8080808080808080;
  if (ends != 0) {
    const std::uint64_t used = ends ^ (ends - 1);  // through the first byte that ends it
    out.boards[i] = join_groups(word & used);
    p += (std::countr_zero(ends) >> 3) + 1;
  } else {
    const auto ninth = load<std::uint8_t>(p + 8);
    std::uint64_t board = join_groups(word) | std::uint64_t{ninth & 0x7fu} << 56;
    p += 9;
    if (ninth >= 0x80) {
      const auto tenth = load<std::uint8_t>(p++);
      if (tenth > 1) return 0;
      board |= std::uint64_t{tenth} << 63;
    }
    out.boards[i] = board;
  }
  const auto move = load<std::uint8_t>(p);
  const auto branches = load<std::uint8_t>(p + 1);
  p += 2;
  if (move > 3 || branches > 1) return 0;
  out.moves[i] = move;
  out.has_branches[i] = branches;
  float* values = out.values + 4 * i;
  unsigned legal = 0;
  if (branches == 0) {
    std::memset(values, 0, 16);
  } else {
    for (unsigned m = 0; m < 4; ++m) {
      const auto variant = load<std::uint8_t>(p);
      if (variant == 0) {
        values[m] = load<float>(p + 1);
        legal |= 1u << m;
        p += 5;
      } else {
        if (variant != 1) return 0;
        values[m] = 0;
        p += 1;
      }
    }
  }
  out.legal[i] = static_cast<std::uint8_t>(legal);
  return static_cast<std::size_t>(p - at);
}

std::uint64_t decode_steps_v2(std::span<const std::byte> payload, const RunHead& head,
                              const StepsOut& out) {
  Cursor in(payload, head.body);
  for (std::size_t i = 0; i < head.steps; ++i) {
    if (in.left() >= kLargestStep) {
      if (const std::size_t used = decode_usual_step(in.here(), i, out)) {
        in.skip(used);
        continue;
      }
    }
    decode_step(in, i, out);
  }
  const std::uint64_t final_board = in.varint(64, "final board");
  if (in.left() != 0)
    refuse("expected the end of the run, got " + std::to_string(in.left()) + " more bytes", in.at());
  return final_board;
}

class Writer {
 public:
  explicit Writer(std::size_t limit) { bytes_.reserve(limit); }

  template <class T>
  void fixed(T value) {
    const auto raw = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
  }

  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) fixed(static_cast<std::uint8_t>(value | 0x80));
    fixed(static_cast<std::uint8_t>(value));
  }

  void raw(const void* data, std::size_t count) {
    const auto* from = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + count);
  }

  std::vector<std::byte> bytes_;
};

std::vector<std::byte> encode_v1(const RunHead& head, const StepsIn& steps, std::uint64_t final_board) {
  if (head.engine.size() > 0xffff)
    throw std::invalid_argument("engine: at most 65,535 bytes fit into a v1 run");
  const std::size_t count = head.steps;
  Writer out(kHeadV1 + head.engine.size() + 9 * count + 12);
  out.raw("A2T1\1\0", 6);
  out.fixed(head.steps);
  out.fixed(head.start_unix_s);
  out.fixed(head.elapsed_s);
  out.fixed(head.max_score);
  out.fixed(head.highest_tile);
  out.fixed(static_cast<std::uint16_t>(head.engine.size()));
  out.raw(head.engine.data(), head.engine.size());
  out.raw(steps.boards, 8 * count);
  out.fixed(final_board);
  out.raw(steps.moves, count);
  out.fixed(crc32c(0, out.bytes_));
  return std::move(out.bytes_);
}

std::vector<std::byte> encode_v2(const RunHead& head, const StepsIn& steps, std::uint64_t final_board) {
  Writer out(64 + head.engine.size() + kLargestStep * head.steps);
  out.varint(head.steps);
  out.varint(head.start_unix_s);
  out.fixed(head.elapsed_s);
  out.varint(head.max_score);
  out.varint(head.highest_tile);
  out.fixed(static_cast<std::uint8_t>(head.has_engine));
  if (head.has_engine) {
    out.varint(head.engine.size());
    out.raw(head.engine.data(), head.engine.size());
  }
  out.varint(head.steps);
  for (std::size_t i = 0; i < head.steps; ++i) {
    out.varint(steps.boards[i]);
    out.fixed(steps.moves[i]);
    out.fixed(static_cast<std::uint8_t>(steps.has_branches[i] != 0));
    if (!steps.has_branches[i]) continue;
    for (unsigned m = 0; m < 4; ++m) {
      const bool legal = steps.legal[i] >> m & 1;
      out.fixed(static_cast<std::uint8_t>(!legal));
      if (legal) out.fixed(steps.values[4 * i + m]);
    }
  }
  out.varint(final_board);
  return std::move(out.bytes_);
}

}  // namespace

RunKind run_kind(std::span<const std::byte> payload) {
  const bool v1 = payload.size() >= 5 && std::memcmp(payload.data(), "A2T1\1", 5) == 0;
  return v1 ? RunKind::v1 : RunKind::v2;
}

void check_own_checksum(std::span<const std::byte> payload) {
  if (payload.size() < 4) return;
  const std::size_t at = payload.size() - 4;
  const auto stored = load<std::uint32_t>(payload.data() + at);
  const std::uint32_t found = crc32c(0, payload.first(at));
  if (stored != found)
    throw ChecksumError("expected CRC32C " + hex_of(stored) + ", got " + hex_of(found), "", at);
}

RunHead read_head(RunKind kind, std::span<const std::byte> payload) {
  return kind == RunKind::v1 ? read_head_v1(payload) : read_head_v2(payload);
}

std::uint64_t decode_steps(RunKind kind, std::span<const std::byte> payload, const RunHead& head,
                           const StepsOut& out) {
  return kind == RunKind::v1 ? decode_steps_v1(payload, head, out) : decode_steps_v2(payload, head, out);
}

std::vector<std::byte> encode_run(RunKind kind, const RunHead& head, const StepsIn& steps,
                                  std::uint64_t final_board) {
  for (std::size_t i = 0; i < head.steps; ++i)
    if (steps.moves[i] > 3)
      throw std::invalid_argument("move " + std::to_string(i) + ": expected 0 to 3, got " +
                                  std::to_string(steps.moves[i]));
  return kind == RunKind::v1 ? encode_v1(head, steps, final_board) : encode_v2(head, steps, final_board);
}

}  // namespace stepwell
