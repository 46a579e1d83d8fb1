// What the core throws besides the standard exceptions; bind/module.cpp turns each into
// the Python error of the same name. std::out_of_range becomes IndexError,
// std::invalid_argument ValueError, std::system_error OSError with its errno.
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

}  // namespace stepwell
