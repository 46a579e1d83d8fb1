// A lane: the newest frames of a run in shared memory, where other processes see them. The bytes are
// those of docs/formats/lane.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "files/segment.hpp"

namespace stepwell {

struct LaneLayout {
  std::uint32_t capacity;  // slots
  std::uint32_t payload_bytes;
  std::uint32_t width, height, channels;
  std::uint32_t pixel_crc;  // of the pixel format's name
  bool kept;  // slots end in metrics, the writer holds the lock and wakes those who wait

  std::uint64_t frame_bytes() const;
  std::uint64_t metadata_bytes() const;  // at most
  std::uint64_t slot_bytes() const;
  std::uint64_t segment_bytes() const;
};

struct LaneMetrics {
  double reward, rolling_return, step_rate_hz;
};

struct LaneFrame {
  std::vector<std::byte> metadata;
  LaneMetrics metrics;
};

// Publishes frames 1, 2, ... Safe from any thread. A forked child has no part in it.
class LaneWriter {
 public:
  // Room for frames of this shape with so much metadata, which is rounded up. Throws
  // std::invalid_argument, Busy while another one writes there, and FileError.
  LaneWriter(const std::string& name, std::uint32_t capacity, std::uint32_t width,
             std::uint32_t height, std::uint32_t channels, std::uint32_t pixel_crc,
             std::uint32_t metadata_bytes);
  ~LaneWriter();

  const LaneLayout& layout() const { return layout_; }
  // The frame's number. Throws std::invalid_argument for another size and when it is closed,
  // FormatError when somebody has cut the segment.
  std::uint64_t publish(std::span<const std::byte> frame, std::span<const std::byte> metadata,
                        const LaneMetrics& metrics);
  // Tells the readers and removes the segment; they keep what they have mapped.
  void close();
  // Whether this process may publish.
  bool open() const;

 private:
  // Asked before the lock is, which a fork may have left locked in the child.
  bool forked() const;

  const LaneLayout layout_;
  const pid_t process_;
  std::string path_;
  mutable std::mutex mutex_;
  std::unique_ptr<Segment> segment_;
  std::uint64_t head_ = 0;
};

// One writer's segment, read. Safe from any thread; call without the GIL. Every call throws FormatError
// when somebody has cut the segment.
class LaneReader {
 public:
  // Throws FileError (ENOENT while the segment is being made) and FormatError.
  explicit LaneReader(const std::string& name);

  const LaneLayout& layout() const { return layout_; }
  const std::string& path() const { return segment_->path(); }
  // The number of the newest frame; 0: none.
  std::uint64_t head() const;
  // Whether no frame will come any more: the writer has said so, or is no more.
  bool closed() const;
  // Whether another segment has the name now.
  bool replaced() const { return segment_->replaced(); }
  // Waits for a head other than this one, for a while, and perhaps returns too early.
  void wait(std::uint64_t head, std::chrono::nanoseconds limit) const;
  // Copies a frame to `pixels`, layout().frame_bytes() of them. Nothing when it is not there, or not
  // any more; `pixels` may then have been written to.
  std::optional<LaneFrame> read(std::uint64_t number, std::span<std::byte> pixels) const;

 private:
  template <class Work>
  void guarded_read(Work&& work) const;

  std::unique_ptr<const Segment> segment_;
  LaneLayout layout_;
};

}  // namespace stepwell
