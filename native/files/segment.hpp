// Shared memory with a name: made and locked by one process, read by others.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace stepwell {

class Segment {
 public:
  // Makes it, `bytes` of zeros, and holds its lock. It is this process's alone: what is forked off has
  // neither the memory nor the lock. A segment that nobody holds was left by a process that has ended;
  // it is given to `retire` and removed first. Throws Busy while somebody holds it, and FileError.
  static std::unique_ptr<Segment> create(const std::string& name, std::size_t bytes,
                                         void (*retire)(int file));
  // One that is there, to be read. Throws FileError.
  static std::unique_ptr<Segment> open(const std::string& name);
  // Whoever made it takes the name away, if it still is that of this segment.
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const std::string& path() const { return path_; }
  std::span<std::byte> memory() const { return memory_; }  // who opened it must not write to it
  // Whether whoever made it is still there.
  bool held() const;
  // Whether the name stands for another segment now.
  bool replaced() const;

 private:
  Segment(const std::string& name, int file, bool writes);
  void map(std::size_t bytes);

  std::string name_, path_;
  int file_;
  bool writes_;
  bool has_name_ = false;  // and takes it away at the end
  pid_t process_;
  std::span<std::byte> memory_;
};

// Sleeps while `word` has this value, until it is woken, interrupted or the time is up.
void wait_while(const std::uint32_t* word, std::uint32_t value, std::chrono::nanoseconds limit);
// Wakes all who sleep on `word`, in any process.
void wake_all(std::uint32_t* word);

}  // namespace stepwell
