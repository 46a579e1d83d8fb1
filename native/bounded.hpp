// Mapped rows read within a budget of memory.
#pragma once

#include <mutex>

#include "reader.hpp"

namespace stepwell {

// Reads as `base` does. Its rows lie in `maps`, mappings of files; whenever about `budget` bytes
// of their pages have been touched, they are given back to the system, which keeps them in its
// own cache as long as it likes. So the resident set of a process that reads random rows of
// files larger than memory stays bounded. The maps live as long as `keep`.
ReaderPtr bounded_reader(ReaderPtr base, std::vector<std::span<const std::byte>> maps,
                         std::size_t budget, std::shared_ptr<const void> keep);

// Mappings of files of which only the `count` that were used last have pages in memory. They live as
// long as `keep`. Safe to use from any number of threads.
class Residents {
 public:
  Residents(std::vector<std::span<const std::byte>> maps, std::size_t count,
            std::shared_ptr<const void> keep);

  std::size_t size() const { return maps_.size(); }
  // A mapping is about to be read: the one that was used longest ago may have to go.
  void begin(std::size_t map);
  // It was read. Its pages go if others took its place meanwhile.
  void end(std::size_t map);

 private:
  void drop(std::size_t map) const;

  const std::vector<std::span<const std::byte>> maps_;
  const std::size_t count_;
  const std::shared_ptr<const void> keep_;
  std::mutex mutex_;
  std::vector<std::size_t> used_;  // the last one behind
};

// Reads as `base` does, whose rows lie in one of the mappings. Throws std::invalid_argument when
// there is no such mapping.
ReaderPtr resident_reader(ReaderPtr base, std::shared_ptr<Residents> residents, std::size_t map);

}  // namespace stepwell
