// A file, or a part of one, read into memory by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace stepwell {

// Fills `out` with the bytes of an open file from `offset` on; `path` is for messages. Throws
// FormatError when the file ends early and FileError when the system refuses. Call without
// the GIL.
void load(int file, const std::string& path, std::uint64_t offset, std::span<std::byte> out);

}  // namespace stepwell
