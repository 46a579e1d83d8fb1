// Compression of single records by the system's own libraries: zlib, zstd and lz4. They are found
// when they are first needed, so a build needs none of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace stepwell {

// As frames of docs/formats/records.md say it.
enum class Codec : std::uint16_t { kRaw = 0, kFlate = 1, kZstd = 2, kZstdDict = 3, kLz4 = 4 };

// Whether this machine has the codec's library. Raw is always there.
bool has_codec(Codec codec);

// A zstd dictionary, made ready for one level of packing and for unpacking.
class Dictionary {
 public:
  // Throws std::invalid_argument when the bytes are no dictionary.
  Dictionary(std::span<const std::byte> bytes, int level);
  ~Dictionary();
  Dictionary(const Dictionary&) = delete;
  Dictionary& operator=(const Dictionary&) = delete;

 private:
  friend std::size_t pack(Codec, int, const Dictionary*, std::span<const std::byte>,
                          std::span<std::byte>);
  friend void unpack(Codec, const Dictionary*, std::span<const std::byte>, std::span<std::byte>);
  void* packing_ = nullptr;
  void* unpacking_ = nullptr;
};

using DictionaryPtr = std::shared_ptr<const Dictionary>;

// Packs `from` into `to` and returns how long it became; 0 when `to` is too small for it.
// Throws std::invalid_argument for a codec this machine does not have.
std::size_t pack(Codec codec, int level, const Dictionary* dictionary,
                 std::span<const std::byte> from, std::span<std::byte> to);

// Unpacks `from`, which must fill `to` exactly. Throws FormatError (without a place) when it does
// not, std::invalid_argument for a codec this machine does not have.
void unpack(Codec codec, const Dictionary* dictionary, std::span<const std::byte> from,
            std::span<std::byte> to);

}  // namespace stepwell
