// Mapped rows read within a budget of memory.
#pragma once

#include "reader.hpp"

namespace stepwell {

// Reads as `base` does. Its rows lie in `maps`, mappings of files; whenever about `budget` bytes
// of their pages have been touched, they are given back to the system, which keeps them in its
// own cache as long as it likes. So the resident set of a process that reads random rows of
// files larger than memory stays bounded. The maps live as long as `keep`.
ReaderPtr bounded_reader(ReaderPtr base, std::vector<std::span<const std::byte>> maps,
                         std::size_t budget, std::shared_ptr<const void> keep);

}  // namespace stepwell
