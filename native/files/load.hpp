// A file, or a part of one, read into memory by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "files/checked.hpp"

namespace stepwell {

// Fills `out` with the bytes of an open file from `offset` on; `path` is for messages. Throws
// FormatError when the file ends early and FileError when the system refuses. Where there are checksums of
// the memory of which `out` is the part from byte `at` on, they are compared while the bytes are in the
// cache; a block that `out` has no end of is left out. Call without the GIL.
void load(int file, const std::string& path, std::uint64_t offset, std::span<std::byte> out,
          const CheckedBlocks* blocks = nullptr, std::size_t at = 0);

// Has the system begin to write part of an open file to the disk, without waiting for it. Does
// nothing where there is no such call.
void begin_writeback(int file, std::uint64_t offset, std::uint64_t bytes);

}  // namespace stepwell
