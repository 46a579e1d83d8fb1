// Entries of a file as the bindings are given them.
#pragma once

#include "arrays.hpp"
#include "stores/entries.hpp"

namespace stepwell::bind {

// Entries are 32 bytes each, as in a pack's index; they and their numbers are copied, since
// other Python threads may change them while we work.
struct EntriesIn {
  EntriesIn(BytesIn file, BytesIn table, RowsIn numbers, nb::handle path);

  BytesIn file;
  std::vector<Entry> table;
  std::vector<std::int64_t> numbers;
  Entries entries;
};

}  // namespace stepwell::bind
