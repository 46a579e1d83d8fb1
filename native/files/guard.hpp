// Reads of mapped files that someone may cut: an error instead of the end of the process.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace stepwell {

namespace detail {
struct Guard {
  std::span<const std::byte> memory;
  std::uint64_t begin;  // of the memory, in its file
  sigjmp_buf back;
  const std::byte* fault;
  Guard* outer;
};
extern thread_local Guard* guard;
// Whatever happens, the guard ends with the function that has it.
struct Guarding {
  explicit Guarding(Guard& now) : outer(now.outer) { guard = &now; }
  ~Guarding() { guard = outer; }
  Guard* const outer;
};
void install_guard();  // again, if someone has put another handler there
[[noreturn]] void throw_cut(const Guard& guard, const std::string& path);
[[noreturn]] void throw_cut(const std::string& path, std::uint64_t offset);
}  // namespace detail

// Runs `work`, which may read `memory`, a mapping of `path` from byte `begin` on. Throws FormatError when the file no
// longer has what is read. The stack of `work` is then left without its destructors: it must own
// nothing, and call nothing that does.
template <class Work>
void guarded(std::span<const std::byte> memory, const std::string& path, Work&& work, std::uint64_t begin = 0) {
  detail::install_guard();
  detail::Guard guard{memory, begin, {}, nullptr, detail::guard};
  const detail::Guarding guarding(guard);
  if (sigsetjmp(guard.back, 0) == 0)
    work();
  else
    detail::throw_cut(guard, path);
}

// The same for work that reads several mapped files, and may throw; inside another such guard, that one answers. `find` is asked whose an address is: a path, and
// the offset there.
template <class Find, class Work>
void guarded_any(Find&& find, Work&& work) {
  if (detail::guard && detail::guard->memory.size() == SIZE_MAX) return work();  // inside another one
  detail::install_guard();
  detail::Guard guard{{static_cast<const std::byte*>(nullptr), SIZE_MAX}, 0, {}, nullptr, detail::guard};
  const detail::Guarding guarding(guard);
  if (sigsetjmp(guard.back, 0) == 0) {
    work();
    return;
  }
  const auto [path, offset] = find(guard.fault);
  detail::throw_cut(path, offset);
}

}  // namespace stepwell
