// Floats of one width made floats of another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stepwell {

// As the header of a shard says it.
enum class FloatKind : std::uint32_t { kF32 = 0, kF16 = 1, kBf16 = 2 };

constexpr std::size_t bytes_of(FloatKind kind) { return kind == FloatKind::kF32 ? 4 : 2; }

// Converts `from` to floats (4 bytes) or doubles (8 bytes) in `to`, which is a part of a result of `bytes`; every
// value is exact. One thread. What is larger than the caches is written past them.
void upcast(FloatKind kind, std::span<const std::byte> from, std::span<float> to, std::size_t bytes);
void upcast(FloatKind kind, std::span<const std::byte> from, std::span<double> to, std::size_t bytes);

}  // namespace stepwell
