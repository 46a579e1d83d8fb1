// What the core throws besides the standard exceptions; bind/module.cpp turns each into its
// Python error. std::out_of_range becomes IndexError, std::invalid_argument ValueError,
// std::bad_alloc MemoryError.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace stepwell {

// Bytes that do not follow docs/formats, found at `offset` of `path`.
struct FormatError : std::runtime_error {
  FormatError(const std::string& message, std::string path, std::uint64_t offset)
      : std::runtime_error(message), path(std::move(path)), offset(offset) {}
  std::string path;
  std::uint64_t offset;
};

// Bytes that follow a version which this build cannot read.
struct VersionError : FormatError {
  using FormatError::FormatError;
};

// Bytes that were changed after they were written: a stored checksum disagrees with them.
struct ChecksumError : FormatError {
  using FormatError::FormatError;
};

// Entries that a writer left half changed: BusyError.
struct Unsettled : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Another writer is at work: BusyError.
struct Busy : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What the system refused: OSError with this errno and path.
struct FileError : std::runtime_error {
  FileError(int code, std::string path)
      : std::runtime_error(path), code(code), path(std::move(path)) {}
  int code;
  std::string path;
};

}  // namespace stepwell
