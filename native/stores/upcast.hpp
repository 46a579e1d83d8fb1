// Floats of one width made floats of another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stepwell {

// As the header of a shard says it.
enum class FloatKind : std::uint32_t { kF32 = 0, kF16 = 1, kBf16 = 2 };

constexpr std::size_t bytes_of(FloatKind kind) { return kind == FloatKind::kF32 ? 4 : 2; }

// Whether a result of so many bytes had better be written past the caches: it would not stay there.
bool larger_than_caches(std::size_t bytes);

// Converts `from` to floats (4 bytes) or doubles (8 bytes) in `to`; every value is exact. One thread.
void upcast(FloatKind kind, std::span<const std::byte> from, std::span<float> to, bool past_caches);
void upcast(FloatKind kind, std::span<const std::byte> from, std::span<double> to, bool past_caches);

}  // namespace stepwell
