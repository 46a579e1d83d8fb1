#include "files/compress.hpp"

#include <dlfcn.h>

#include <cstring>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>

#include "error.hpp"

namespace stepwell {
namespace {

void* open_library(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  return nullptr;
}

template <class Function>
void find(void* library, const char* name, Function*& function, bool& found) {
  function = library ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
  found &= function != nullptr;
}

[[noreturn]] void no_library(const char* codec, const char* library) {
  throw std::invalid_argument(std::string(codec) + " needs " + library +
                              ", which this machine does not have");
}

// zlib's stream, whose layout is part of its binary interface.
struct ZStream {
  const void* next_in;
  unsigned avail_in;
  unsigned long total_in;
  void* next_out;
  unsigned avail_out;
  unsigned long total_out;
  const char* msg;
  void* state;
  void* (*zalloc)(void*, unsigned, unsigned);
  void (*zfree)(void*, void*);
  void* opaque;
  int data_type;
  unsigned long adler;
  unsigned long reserved;
};

struct Zlib {
  int (*deflate_init)(ZStream*, int, int, int, int, int, const char*, int);
  int (*deflate)(ZStream*, int);
  int (*deflate_reset)(ZStream*);
  int (*deflate_end)(ZStream*);
  int (*inflate_init)(ZStream*, int, const char*, int);
  int (*inflate)(ZStream*, int);
  int (*inflate_reset)(ZStream*);
  int (*inflate_end)(ZStream*);
  bool found = true;

  Zlib() {
    void* library = open_library({"libz.so.1", "libz.1.dylib"});
    find(library, "deflateInit2_", deflate_init, found);
    find(library, "deflate", deflate, found);
    find(library, "deflateReset", deflate_reset, found);
    find(library, "deflateEnd", deflate_end, found);
    find(library, "inflateInit2_", inflate_init, found);
    find(library, "inflate", inflate, found);
    find(library, "inflateReset", inflate_reset, found);
    find(library, "inflateEnd", inflate_end, found);
  }
};

struct Zstd {
  void* (*create_cctx)();
  std::size_t (*free_cctx)(void*);
  std::size_t (*compress)(void*, void*, std::size_t, const void*, std::size_t, int);
  std::size_t (*compress_dict)(void*, void*, std::size_t, const void*, std::size_t, const void*);
  void* (*create_dctx)();
  std::size_t (*free_dctx)(void*);
  std::size_t (*decompress)(void*, void*, std::size_t, const void*, std::size_t);
  std::size_t (*decompress_dict)(void*, void*, std::size_t, const void*, std::size_t, const void*);
  void* (*create_cdict)(const void*, std::size_t, int);
  std::size_t (*free_cdict)(void*);
  void* (*create_ddict)(const void*, std::size_t);
  std::size_t (*free_ddict)(void*);
  unsigned (*is_error)(std::size_t);
  const char* (*error_name)(std::size_t);
  bool found = true;

  Zstd() {
    void* library = open_library({"libzstd.so.1", "libzstd.1.dylib"});
    find(library, "ZSTD_createCCtx", create_cctx, found);
    find(library, "ZSTD_freeCCtx", free_cctx, found);
    find(library, "ZSTD_compressCCtx", compress, found);
    find(library, "ZSTD_compress_usingCDict", compress_dict, found);
    find(library, "ZSTD_createDCtx", create_dctx, found);
    find(library, "ZSTD_freeDCtx", free_dctx, found);
    find(library, "ZSTD_decompressDCtx", decompress, found);
    find(library, "ZSTD_decompress_usingDDict", decompress_dict, found);
    find(library, "ZSTD_createCDict", create_cdict, found);
    find(library, "ZSTD_freeCDict", free_cdict, found);
    find(library, "ZSTD_createDDict", create_ddict, found);
    find(library, "ZSTD_freeDDict", free_ddict, found);
    find(library, "ZSTD_isError", is_error, found);
    find(library, "ZSTD_getErrorName", error_name, found);
  }
};

struct Lz4 {
  int (*compress)(const char*, char*, int, int);
  int (*decompress)(const char*, char*, int, int);
  bool found = true;

  Lz4() {
    void* library = open_library({"liblz4.so.1", "liblz4.1.dylib"});
    find(library, "LZ4_compress_default", compress, found);
    find(library, "LZ4_decompress_safe", decompress, found);
  }
};

// Leaked on purpose: threads may still unpack while the process ends.
const Zlib& zlib() {
  static const Zlib& library = *new Zlib;
  return library;
}
const Zstd& zstd() {
  static const Zstd& library = *new Zstd;
  return library;
}
const Lz4& lz4() {
  static const Lz4& library = *new Lz4;
  return library;
}

constexpr const char* kZlibVersion = "1.2.0";
constexpr int kFinish = 4, kStreamEnd = 1, kDeflated = 8, kRawWindow = -15, kDefaultMemory = 8;

// A raw deflate stream and the reverse, one of each for a thread.
struct Deflater {
  ZStream stream{};
  int level;
  explicit Deflater(int level) : level(level) {
    if (zlib().deflate_init(&stream, level, kDeflated, kRawWindow, kDefaultMemory, 0, kZlibVersion,
                            sizeof(ZStream)) != 0)
      throw std::bad_alloc();
  }
  ~Deflater() { zlib().deflate_end(&stream); }
};
struct Inflater {
  ZStream stream{};
  Inflater() {
    if (zlib().inflate_init(&stream, kRawWindow, kZlibVersion, sizeof(ZStream)) != 0)
      throw std::bad_alloc();
  }
  ~Inflater() { zlib().inflate_end(&stream); }
};
struct ZstdPacker {
  void* context = zstd().create_cctx();
  ~ZstdPacker() { zstd().free_cctx(context); }
};
struct ZstdUnpacker {
  void* context = zstd().create_dctx();
  ~ZstdUnpacker() { zstd().free_dctx(context); }
};

std::size_t deflated(int level, std::span<const std::byte> from, std::span<std::byte> to) {
  thread_local std::unique_ptr<Deflater> own;
  if (!own || own->level != level) own = std::make_unique<Deflater>(level);
  ZStream& stream = own->stream;
  zlib().deflate_reset(&stream);
  stream.next_in = from.data();
  stream.avail_in = static_cast<unsigned>(from.size());
  stream.next_out = to.data();
  stream.avail_out = static_cast<unsigned>(to.size());
  if (zlib().deflate(&stream, kFinish) != kStreamEnd) return 0;
  return to.size() - stream.avail_out;
}

[[noreturn]] void wrong_length(const char* codec, std::size_t expected, std::size_t got) {
  throw FormatError(std::string(codec) + ": expected " + std::to_string(expected) + " bytes, got " +
                        std::to_string(got),
                    "", 0);
}

void inflated(std::span<const std::byte> from, std::span<std::byte> to) {
  thread_local Inflater own;
  ZStream& stream = own.stream;
  zlib().inflate_reset(&stream);
  std::byte nothing{};  // zlib wants somewhere to write, even for no bytes
  stream.next_in = from.data();
  stream.avail_in = static_cast<unsigned>(from.size());
  stream.next_out = to.empty() ? &nothing : to.data();
  stream.avail_out = static_cast<unsigned>(to.size());
  const int code = zlib().inflate(&stream, kFinish);
  if (code != kStreamEnd && stream.msg) throw FormatError(std::string("flate: ") + stream.msg, "", 0);
  if (stream.avail_out != 0) wrong_length("flate", to.size(), to.size() - stream.avail_out);
  if (code != kStreamEnd || stream.avail_in != 0)
    throw FormatError("flate: more than the expected " + std::to_string(to.size()) + " bytes", "", 0);
}

}  // namespace

bool has_codec(Codec codec) {
  switch (codec) {
    case Codec::kRaw: return true;
    case Codec::kFlate: return zlib().found;
    case Codec::kZstd:
    case Codec::kZstdDict: return zstd().found;
    case Codec::kLz4: return lz4().found;
  }
  return false;
}

Dictionary::Dictionary(std::span<const std::byte> bytes, int level) {
  if (!zstd().found) no_library("zstd", "libzstd.so.1");
  packing_ = zstd().create_cdict(bytes.data(), bytes.size(), level);
  unpacking_ = zstd().create_ddict(bytes.data(), bytes.size());
  if (packing_ && unpacking_) return;
  zstd().free_cdict(packing_);
  zstd().free_ddict(unpacking_);
  throw std::invalid_argument("not a zstd dictionary");
}

Dictionary::~Dictionary() {
  zstd().free_cdict(packing_);
  zstd().free_ddict(unpacking_);
}

std::size_t pack(Codec codec, int level, const Dictionary* dictionary,
                 std::span<const std::byte> from, std::span<std::byte> to) {
  switch (codec) {
    case Codec::kRaw:
      if (from.size() > to.size()) return 0;
      if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
      return from.size();
    case Codec::kFlate:
      if (!zlib().found) no_library("flate", "libz.so.1");
      return deflated(level, from, to);
    case Codec::kZstd:
    case Codec::kZstdDict: {
      if (!zstd().found) no_library("zstd", "libzstd.so.1");
      thread_local ZstdPacker own;
      const std::size_t size =
          codec == Codec::kZstd
              ? zstd().compress(own.context, to.data(), to.size(), from.data(), from.size(), level)
              : zstd().compress_dict(own.context, to.data(), to.size(), from.data(), from.size(),
                                     dictionary->packing_);
      return zstd().is_error(size) ? 0 : size;
    }
    case Codec::kLz4: {
      if (!lz4().found) no_library("lz4", "liblz4.so.1");
      constexpr std::size_t limit = std::numeric_limits<int>::max();
      if (from.size() > limit) return 0;
      const int size = lz4().compress(reinterpret_cast<const char*>(from.data()),
                                      reinterpret_cast<char*>(to.data()),
                                      static_cast<int>(from.size()),
                                      static_cast<int>(std::min(to.size(), limit)));
      return size > 0 ? static_cast<std::size_t>(size) : 0;
    }
  }
  throw std::invalid_argument("no such codec");
}

void unpack(Codec codec, const Dictionary* dictionary, std::span<const std::byte> from,
            std::span<std::byte> to) {
  switch (codec) {
    case Codec::kRaw:
      if (from.size() != to.size()) wrong_length("raw", to.size(), from.size());
      if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
      return;
    case Codec::kFlate:
      if (!zlib().found) no_library("flate", "libz.so.1");
      return inflated(from, to);
    case Codec::kZstd:
    case Codec::kZstdDict: {
      if (!zstd().found) no_library("zstd", "libzstd.so.1");
      if (codec == Codec::kZstdDict && !dictionary)
        throw FormatError("zstd: the dictionary is missing", "", 0);
      thread_local ZstdUnpacker own;
      const std::size_t size =
          codec == Codec::kZstd
              ? zstd().decompress(own.context, to.data(), to.size(), from.data(), from.size())
              : zstd().decompress_dict(own.context, to.data(), to.size(), from.data(), from.size(),
                                       dictionary->unpacking_);
      if (zstd().is_error(size))
        throw FormatError(std::string("zstd: ") + zstd().error_name(size), "", 0);
      if (size != to.size()) wrong_length("zstd", to.size(), size);
      return;
    }
    case Codec::kLz4: {
      if (!lz4().found) no_library("lz4", "liblz4.so.1");
      constexpr std::size_t limit = std::numeric_limits<int>::max();
      if (from.size() > limit || to.size() > limit) throw FormatError("lz4: too long", "", 0);
      const int size = lz4().decompress(reinterpret_cast<const char*>(from.data()),
                                        reinterpret_cast<char*>(to.data()),
                                        static_cast<int>(from.size()), static_cast<int>(to.size()));
      if (size < 0)
        throw FormatError("lz4: damaged, or more than the expected " + std::to_string(to.size()) +
                              " bytes",
                          "", 0);
      if (static_cast<std::size_t>(size) != to.size())
        wrong_length("lz4", to.size(), static_cast<std::size_t>(size));
      return;
    }
  }
  throw FormatError("codec " + std::to_string(static_cast<unsigned>(codec)) + " is not known", "", 0);
}

}  // namespace stepwell
