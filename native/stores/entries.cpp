#include "stores/entries.hpp"

#include <cstring>

#include "error.hpp"
#include "files/checksum.hpp"
#include "threads.hpp"

namespace stepwell {

std::span<const std::byte> Entries::payload(std::size_t i) const {
  const Entry& entry = entries[i];
  if (entry.offset > file.size() || entry.length > file.size() - entry.offset)
    throw FormatError("truncated: expected " + std::to_string(entry.length) + " bytes at " +
                          std::to_string(entry.offset) + ", the file has " + std::to_string(file.size()),
                      "", 0);
  return file.subspan(entry.offset, entry.length);
}

void Entries::check_entry(std::size_t i) const {
  if (entries[i].checksum == 0) return;
  naming(i, [&] {
    const std::uint32_t found = crc32c(0, payload(i));
    if (found != entries[i].checksum)
      throw ChecksumError("expected CRC32C " + hex_of(entries[i].checksum) + ", got " + hex_of(found), "", 0);
  });
}

void Entries::naming(std::size_t i, const std::function<void()>& work) const {
  const auto said = [&](const FormatError& e) {
    return (numbers[i] < 0 ? "" : "entry " + std::to_string(numbers[i]) + ": ") + e.what();
  };
  try {
    work();
  } catch (const ChecksumError& e) {
    throw ChecksumError(said(e), path, entries[i].offset + e.offset);
  } catch (const FormatError& e) {
    throw FormatError(said(e), path, entries[i].offset + e.offset);
  }
}

void check_entries(const Entries& entries, unsigned threads) {
  share_out(entries.size(), threads, [&](std::size_t i) { entries.check_entry(i); });
}

std::vector<std::uint32_t> checksums_of(const Entries& entries) {
  std::vector<std::uint32_t> checksums(entries.size());
  for (std::size_t i = 0; i < checksums.size(); ++i)
    entries.naming(i, [&] { checksums[i] = crc32c(0, entries.payload(i)); });
  return checksums;
}

PayloadBatch copy_payloads(const Entries& entries, unsigned threads) {
  PayloadBatch batch;
  batch.offsets.push_back(0);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    std::int64_t length = 0;
    entries.naming(i, [&] { length = static_cast<std::int64_t>(entries.payload(i).size()); });
    batch.offsets.push_back(batch.offsets.back() + length);
  }
  batch.block = shared_blocks()->take(static_cast<std::size_t>(batch.offsets.back()));
  share_out(entries.size(), threads, [&](std::size_t i) {
    entries.check_entry(i);
    const auto payload = entries.payload(i);
    if (!payload.empty())
      std::memcpy(batch.block.get() + batch.offsets[i], payload.data(), payload.size());
  });
  return batch;
}

}  // namespace stepwell
