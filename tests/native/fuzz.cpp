// Damaged payloads against the decoders, under ASan and UBSan: `make sanitize`.
//
// Whole runs, as the encoder writes them, are cut, stretched and overwritten at random; whatever
// comes of it, the decoder fills arrays of exactly the size it was promised or throws a
// FormatError whose offset lies inside the payload. The seed is the first argument, so that a
// failure can be repeated.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "error.hpp"
#include "game2048/jsonl.hpp"
#include "game2048/run_codec.hpp"
#include "game2048/runs.hpp"
#include "loader/permute.hpp"
#include "stores/planes.hpp"

using namespace stepwell;

namespace {

using Bytes = std::vector<std::byte>;

class Random {
 public:
  explicit Random(std::uint64_t seed) : key_(mix(seed)) {}
  std::uint64_t below(std::uint64_t bound) { return scale(mix(key_ + count_++), bound); }
  std::uint64_t bits() { return mix(key_ + count_++); }

 private:
  std::uint64_t key_, count_ = 0;
};

Bytes some_run(Random& random, RunKind kind) {
  const auto steps = static_cast<std::uint32_t>(random.below(40));
  std::vector<std::uint64_t> boards(steps);
  std::vector<float> values(4 * steps);
  std::vector<std::uint8_t> moves(steps), legal(steps), known(steps);
  for (std::uint32_t i = 0; i < steps; ++i) {
    boards[i] = random.bits() >> random.below(64);
    moves[i] = static_cast<std::uint8_t>(random.below(4));
    legal[i] = static_cast<std::uint8_t>(random.below(16));
    known[i] = random.below(5) != 0;
    for (unsigned m = 0; m < 4; ++m) values[4 * i + m] = static_cast<float>(random.below(1000)) / 1000;
  }
  RunHead head{};
  head.steps = steps;
  head.start_unix_s = random.bits() >> random.below(64);
  head.max_score = random.bits() >> random.below(64);
  head.highest_tile = 2048;
  head.has_engine = random.below(2);
  if (head.has_engine) head.engine = "engine \xc3\xa9";
  return encode_run(kind, head, {boards.data(), values.data(), moves.data(), legal.data(), known.data()},
                    random.bits());
}

void damage(Random& random, Bytes& payload) {
  for (std::uint64_t times = 1 + random.below(4); times > 0; --times) {
    const std::size_t at = payload.empty() ? 0 : random.below(payload.size());
    switch (random.below(6)) {
      case 0:
        payload.resize(at);
        break;
      case 1:
        payload.insert(payload.begin() + static_cast<std::ptrdiff_t>(at), std::byte(random.below(256)));
        break;
      case 2:
        if (!payload.empty()) payload.erase(payload.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 3:  // the values that lengths and varints trip over
        if (!payload.empty()) payload[at] = std::byte(random.below(2) ? 0xff : 0x80);
        break;
      default:
        if (!payload.empty()) payload[at] = std::byte(random.below(256));
    }
  }
}

// Memory of exactly this size, so that ASan sees one byte too many.
template <class T>
std::unique_ptr<T[]> exactly(std::size_t count) {
  return std::make_unique<T[]>(count);
}

bool decode(const Bytes& payload, RunKind kind) {
  const auto memory = exactly<std::byte>(payload.size());
  if (!payload.empty()) std::memcpy(memory.get(), payload.data(), payload.size());
  const std::span<const std::byte> bytes(memory.get(), payload.size());
  try {
    const RunHead head = read_head(kind, bytes);
    if (head.steps > payload.size()) std::abort();  // promised more than can be there
    const auto boards = exactly<std::uint64_t>(head.steps);
    const auto values = exactly<float>(4 * std::size_t{head.steps});
    const auto moves = exactly<std::uint8_t>(head.steps), legal = exactly<std::uint8_t>(head.steps),
               known = exactly<std::uint8_t>(head.steps);
    decode_steps(kind, bytes, head, {boards.get(), values.get(), moves.get(), legal.get(), known.get()});
    for (std::size_t i = 0; i < head.steps; ++i)
      if (moves[i] > 3 || legal[i] > 15 || known[i] > 1) std::abort();
  } catch (const FormatError& e) {
    if (e.offset > payload.size()) std::abort();
    return false;
  }
  Entry entry{};
  entry.length = static_cast<std::uint32_t>(payload.size());
  entry.kind = static_cast<std::uint16_t>(kind);
  const std::int64_t number = 7;
  const Entries entries{bytes, {&entry, 1}, {&number, 1}, "fuzz"};
  for (const JsonlShape shape : {JsonlShape::run, JsonlShape::step, JsonlShape::seed_step}) to_jsonl(entries, shape, true, false);
  return true;
}

// Planes of any number and size, taken apart and put together again.
void planes(Random& random) {
  const std::size_t count = 1 + random.below(20), size = count * random.below(100);
  const auto row = exactly<std::byte>(size), apart = exactly<std::byte>(size),
             again = exactly<std::byte>(size);
  for (std::size_t i = 0; i < size; ++i) row[i] = std::byte(random.below(256));
  take_apart({row.get(), size}, count, {apart.get(), size});
  put_together({apart.get(), size}, count, {again.get(), size});
  for (std::size_t i = 0; i < size; ++i)
    if (again[i] != row[i] || apart[i % count * (size / count) + i / count] != row[i]) std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 0) : 1;
  const std::uint64_t rounds = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 300'000;
  Random random(seed);
  std::uint64_t decoded = 0;
  for (std::uint64_t i = 0; i < rounds; ++i) {
    const RunKind kind = random.below(3) ? RunKind::v2 : RunKind::v1;
    Bytes payload = some_run(random, kind);
    if (i % 64 == 0) planes(random);
    if (i % 16 == 0) {
      if (!decode(payload, kind)) std::abort();  // what is whole decodes
      continue;
    }
    damage(random, payload);
    decoded += decode(payload, kind);
    decode(payload, run_kind(payload));
  }
  std::printf("%llu damaged payloads, %llu of them still decode\n",
              static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(decoded));
}
