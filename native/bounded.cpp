#include "bounded.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace stepwell {
namespace {

class BoundedReader final : public Reader {
 public:
  BoundedReader(ReaderPtr base, std::vector<std::span<const std::byte>> maps, std::size_t budget,
                std::shared_ptr<const void> keep)
      : Reader(base->length(), {base->fields().begin(), base->fields().end()}),
        base_(std::move(base)),
        maps_(std::move(maps)),
        budget_(budget),
        page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))),
        keep_(std::move(keep)) {}

  bool holds(std::span<const std::byte> memory) const override { return base_->holds(memory); }

  void fill(std::span<const std::int64_t> rows, std::span<const std::int64_t> slots,
            std::span<std::byte* const> outs) const override {
    base_->fill(rows, slots, outs);
    // A row touches a page of its own, at the most; neighbours make this an overestimate.
    const std::size_t touched = touched_.fetch_add(rows.size() * page_) + rows.size() * page_;
    if (touched < budget_) return;
    std::size_t expected = touched;
    if (!touched_.compare_exchange_strong(expected, 0)) return;  // another thread goes on counting
    for (const auto map : maps_) {
      const auto begin = (reinterpret_cast<std::uintptr_t>(map.data()) + page_ - 1) / page_ * page_;
      const auto end = reinterpret_cast<std::uintptr_t>(map.data() + map.size()) / page_ * page_;
      if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    }
  }

 private:
  ReaderPtr base_;
  std::vector<std::span<const std::byte>> maps_;
  std::size_t budget_;
  std::size_t page_;
  std::shared_ptr<const void> keep_;
  mutable std::atomic<std::size_t> touched_{0};
};

}  // namespace

ReaderPtr bounded_reader(ReaderPtr base, std::vector<std::span<const std::byte>> maps,
                         std::size_t budget, std::shared_ptr<const void> keep) {
  return std::make_shared<BoundedReader>(std::move(base), std::move(maps), budget, std::move(keep));
}

}  // namespace stepwell
