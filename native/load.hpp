// A file, or a part of one, read into memory by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace stepwell {

// Fills `out` with the bytes of `path` from `offset` on. Throws FormatError when the file
// ends early and FileError when the system refuses. Call without the GIL.
void load(const std::string& path, std::uint64_t offset, std::span<std::byte> out);

}  // namespace stepwell
