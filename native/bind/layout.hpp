// Batches as Python has them: a dict of arrays over one block.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "arrays.hpp"
#include "numpy.hpp"
#include "reader.hpp"

namespace stepwell::bind {

// The fields of a reader as arrays. Call with the GIL.
class Layout {
 public:
  // Name, dtype and shape of a row, of each field. Throws std::invalid_argument when a field of the reader has
  // another size.
  Layout(ReaderPtr reader, nb::sequence fields);

  const Reader& reader() const { return *reader_; }

  // A dict of arrays over a block that block_layout(reader, count) describes; each of them keeps the block.
  nb::dict batch(BlockRef block, std::size_t count) const;

  // The memory of the caller's arrays, in order, and a dict of those; nothing when some is not as it has to be.
  std::optional<std::vector<std::span<std::byte>>> places(nb::handle out, std::size_t count, nb::dict& batch) const;

 private:
  struct Column {
    nb::object name, dtype;
    std::vector<Py_ssize_t> shape;  // of a batch: the first is replaced by the number of rows
    std::size_t bytes;              // of a row
  };

  ReaderPtr reader_;
  std::vector<Column> columns_;
};

// These rows in a block of the shared pool, laid out as block_layout has it. Call without the GIL.
BlockRef read_shared(const Reader& reader, std::span<const std::int64_t> rows, std::span<const std::size_t> begins);

// Where each field goes. Throws std::invalid_argument for outputs of the wrong size, that share memory, or that are
// memory of the source itself.
std::vector<std::byte*> checked_places(const Reader& reader, std::size_t count,
                                       std::span<const std::span<std::byte>> outs);

}  // namespace stepwell::bind
