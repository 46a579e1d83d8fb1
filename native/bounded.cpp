#include "bounded.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>

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
        keep_(std::move(keep)) {
    is_made_of(*base_);
  }

  bool holds(std::span<const std::byte> memory) const override { return base_->holds(memory); }
  void expect(std::span<const std::int64_t> rows) const override { base_->expect(rows); }

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

class ResidentReader final : public Reader {
 public:
  ResidentReader(ReaderPtr base, std::shared_ptr<Residents> residents, std::size_t map)
      : Reader(base->length(), {base->fields().begin(), base->fields().end()}),
        base_(std::move(base)),
        residents_(std::move(residents)),
        map_(map) {
    is_made_of(*base_);
  }

  bool holds(std::span<const std::byte> memory) const override { return base_->holds(memory); }
  void expect(std::span<const std::int64_t> rows) const override { base_->expect(rows); }

  void fill(std::span<const std::int64_t> rows, std::span<const std::int64_t> slots,
            std::span<std::byte* const> outs) const override {
    residents_->begin(map_);
    base_->fill(rows, slots, outs);
    residents_->end(map_);
  }

 private:
  ReaderPtr base_;
  std::shared_ptr<Residents> residents_;
  std::size_t map_;
};

}  // namespace

Residents::Residents(std::size_t count) : count_(count) {
  if (count_ == 0) throw std::invalid_argument("at least one mapping is needed in memory");
}

void Residents::add(std::span<const std::byte> map, std::shared_ptr<const void> keep) {
  const std::lock_guard lock(mutex_);
  keep_.push_back(std::move(keep));
  maps_.push_back(map);
}

std::size_t Residents::size() {
  const std::lock_guard lock(mutex_);
  return maps_.size();
}

void Residents::begin(std::size_t map) {
  const std::lock_guard lock(mutex_);
  if (!used_.empty() && used_.back() == map) return;
  std::erase(used_, map);
  used_.push_back(map);
  if (used_.size() > count_) {
    drop(used_.front());
    used_.erase(used_.begin());
  }
}

void Residents::end(std::size_t map) {
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(used_, map) == used_.end()) drop(map);
}

// Whole pages around the bytes: nothing else is in a mapping of a file.
void Residents::drop(std::size_t map) const {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(maps_[map].data()) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(maps_[map].data() + maps_[map].size());
  if (!maps_[map].empty()) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

ReaderPtr resident_reader(ReaderPtr base, std::shared_ptr<Residents> residents, std::size_t map) {
  if (map >= residents->size()) throw std::invalid_argument("there is no such mapping");
  return std::make_shared<ResidentReader>(std::move(base), std::move(residents), map);
}

ReaderPtr bounded_reader(ReaderPtr base, std::vector<std::span<const std::byte>> maps,
                         std::size_t budget, std::shared_ptr<const void> keep) {
  return std::make_shared<BoundedReader>(std::move(base), std::move(maps), budget, std::move(keep));
}

}  // namespace stepwell
