// A bare loop that makes doubles of the floats in mapped files: the limit for reading in order.
#include <fcntl.h>
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kHeader = 32;

void plain(const float* from, double* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
}

__attribute__((target("avx2"))) void past_caches(const float* from, double* to, std::size_t count) {
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) _mm256_stream_pd(to + i, _mm256_cvtps_pd(_mm_loadu_ps(from + i)));
  for (; i < count; ++i) to[i] = from[i];
  _mm_sfence();
}

}  // namespace

// Every file is mapped, read in batches of `batch` values by so many threads, each with memory of its
// own, and unmapped. Returns 0, or 1 when a file cannot be mapped.
extern "C" int probe_pass(const char* const* paths, std::size_t files, std::size_t batch,
                          std::size_t threads, int streaming) {
  static thread_local std::vector<double*> buffers;
  while (buffers.size() < threads)
    buffers.push_back(static_cast<double*>(std::aligned_alloc(4096, (batch * 8 + 4095) / 4096 * 4096)));
  for (std::size_t f = 0; f < files; ++f) {
    const int file = open(paths[f], O_RDONLY);
    struct stat about;
    if (file < 0 || fstat(file, &about) != 0) return 1;
    const auto size = static_cast<std::size_t>(about.st_size);
    void* const memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) return 1;
    const auto* const values = reinterpret_cast<const float*>(static_cast<std::byte*>(memory) + kHeader);
    const std::size_t count = (size - kHeader) / 4;
    std::atomic<std::size_t> next{0};
    const auto work = [&](double* to) {
      for (std::size_t at; (at = next.fetch_add(batch)) < count;)
        (streaming ? past_caches : plain)(values + at, to, std::min(batch, count - at));
    };
    std::vector<std::thread> helpers;
    for (std::size_t t = 1; t < threads; ++t) helpers.emplace_back(work, buffers[t]);
    work(buffers[0]);
    for (auto& helper : helpers) helper.join();
    munmap(memory, size);
  }
  return 0;
}
