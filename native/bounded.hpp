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

// Mappings of files of which only the `count` that were used last have pages in memory. Safe to use from any
// number of threads.
class Residents {
 public:
  // Throws std::invalid_argument when the count is 0.
  explicit Residents(std::size_t count);

  // A further mapping, which lives as long as `keep`; they are numbered from 0 on.
  void add(std::span<const std::byte> map, std::shared_ptr<const void> keep);
  std::size_t size();
  // A mapping is about to be read: the one that was used longest ago may have to go.
  void begin(std::size_t map);
  // It was read. Its pages go if others took its place meanwhile.
  void end(std::size_t map);

 private:
  void drop(std::size_t map) const;

  const std::size_t count_;
  std::mutex mutex_;
  std::vector<std::span<const std::byte>> maps_;
  std::vector<std::shared_ptr<const void>> keep_;
  std::vector<std::size_t> used_;  // the last one behind
};

// Reads as `base` does, whose rows lie in one of the mappings. Throws std::invalid_argument when
// there is no such mapping.
ReaderPtr resident_reader(ReaderPtr base, std::shared_ptr<Residents> residents, std::size_t map);

}  // namespace stepwell
