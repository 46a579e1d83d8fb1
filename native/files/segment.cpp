#include "files/segment.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <cerrno>
#include <climits>
#include <mutex>
#include <thread>
#include <vector>

#include "error.hpp"

// Locks of an open file: a second descriptor that the same process closes does not end them.
#ifndef F_OFD_SETLK
#define F_OFD_SETLK F_SETLK
#define F_OFD_GETLK F_GETLK
#endif

namespace stepwell {
namespace {

std::string path_of(const std::string& name) { return "/dev/shm/" + name; }

// The descriptors that hold a lock. A forked child would hold it on when its parent has ended, so it
// closes them first of all.
struct Held {
  std::mutex mutex;
  std::vector<int> files;
};

Held& held_files() {
  static Held* held = [] {
    static Held made;
    pthread_atfork([] { held_files().mutex.lock(); }, [] { held_files().mutex.unlock(); },
                   [] {
                     for (const int file : held_files().files) close(file);
                     held_files().files.clear();
                     held_files().mutex.unlock();
                   });
    return &made;
  }();
  return *held;
}

// Opens nothing but a plain file, does not follow links, does not wait for the other end of a pipe.
int open_name(const std::string& name, int how) {
  return shm_open(("/" + name).c_str(), how | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW, 0600);
}

int open_to_hold(const std::string& name, int how) {
  Held& held = held_files();
  const std::lock_guard lock(held.mutex);
  const int file = open_name(name, how);
  if (file >= 0) held.files.push_back(file);
  return file;
}

struct stat status_of(int file, const std::string& name) {
  struct stat status{};
  if (fstat(file, &status) != 0) throw FileError(errno, path_of(name));
  return status;
}

bool is_at(int file, const std::string& name) {
  const int there = open_name(name, O_RDONLY);
  if (there < 0) return false;
  struct stat a{}, b{};
  const bool known = fstat(there, &a) == 0 && fstat(file, &b) == 0;
  close(there);
  return known && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

struct flock whole_file() {
  struct flock whole{};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return whole;
}

bool try_lock(int file, const std::string& name) {
  struct flock whole = whole_file();
  if (fcntl(file, F_OFD_SETLK, &whole) == 0) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  throw FileError(errno, path_of(name));
}

}  // namespace

Segment::Segment(const std::string& name, int file, bool writes)
    : name_(name), path_(path_of(name)), file_(file), writes_(writes), process_(getpid()) {}

std::unique_ptr<Segment> Segment::create(const std::string& name, std::size_t bytes,
                                         void (*retire)(int file)) {
  for (;;) {
    int file = open_to_hold(name, O_RDWR | O_CREAT | O_EXCL);
    const bool fresh = file >= 0;
    if (!fresh && errno == EEXIST) file = open_to_hold(name, O_RDWR);
    if (file < 0 && errno == ENOENT) continue;  // it was removed in between
    if (file < 0) throw FileError(errno, path_of(name));
    std::unique_ptr<Segment> segment(new Segment(name, file, true));
    const struct stat status = status_of(file, name);
    if (!S_ISREG(status.st_mode) || status.st_uid != geteuid())
      throw FileError(EACCES, path_of(name));
    if (!try_lock(file, name)) throw Busy("another writer is at work in " + path_of(name));
    // Of two that found the same one, the second has now locked what the first removed.
    if (!is_at(file, name)) continue;
    segment->has_name_ = true;
    if (!fresh) {
      retire(file);
      continue;
    }
    int code;  // where there is no room, an error now and no signal later
    while ((code = posix_fallocate(file, 0, static_cast<off_t>(bytes))) == EINTR) {
    }
    if (code != 0) throw FileError(code, path_of(name));
    segment->map(bytes);
    return segment;
  }
}

std::unique_ptr<Segment> Segment::open(const std::string& name) {
  const int file = open_name(name, O_RDONLY);
  if (file < 0) throw FileError(errno, path_of(name));
  std::unique_ptr<Segment> segment(new Segment(name, file, false));
  const struct stat status = status_of(file, name);
  if (!S_ISREG(status.st_mode)) throw FileError(EACCES, path_of(name));
  segment->map(static_cast<std::size_t>(status.st_size));
  return segment;
}

void Segment::map(std::size_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock(held_files().mutex);  // no fork between the two calls
  const int access = writes_ ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const at = mmap(nullptr, bytes, access, MAP_SHARED, file_, 0);
  if (at == MAP_FAILED) throw FileError(errno, path_);
  memory_ = {static_cast<std::byte*>(at), bytes};
#ifdef MADV_DONTFORK
  if (writes_) madvise(at, bytes, MADV_DONTFORK);  // a mapping would keep the lock as well
#endif
}

Segment::~Segment() {
  if (writes_ && process_ != getpid()) return;  // a forked child has neither the memory nor the descriptor
  if (has_name_ && is_at(file_, name_)) shm_unlink(("/" + name_).c_str());
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
  Held& held = held_files();
  const std::lock_guard lock(held.mutex);
  std::erase(held.files, file_);
  close(file_);
}

bool Segment::held() const {
  struct flock whole = whole_file();
  return fcntl(file_, F_OFD_GETLK, &whole) != 0 || whole.l_type != F_UNLCK;
}

bool Segment::replaced() const {
  const int there = open_name(name_, O_RDONLY);
  if (there < 0) return false;
  close(there);
  return !is_at(file_, name_);
}

#ifdef __linux__

void wait_while(const std::uint32_t* word, std::uint32_t value, std::chrono::nanoseconds limit) {
  const auto left = std::max(limit, std::chrono::nanoseconds(0)).count();
  const timespec time{static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void wake_all(std::uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

#else

void wait_while(const std::uint32_t*, std::uint32_t, std::chrono::nanoseconds limit) {
  std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(limit, std::chrono::microseconds(500)));
}

void wake_all(std::uint32_t*) {}

#endif

}  // namespace stepwell
