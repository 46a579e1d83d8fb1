// Batches made ahead that cross to a device in groups.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "cuda/feed.hpp"
#include "loader/prefetch.hpp"

namespace stepwell::cuda {

// The last stage of a Prefetch: puts its batches into the groups of a Feed.
//
// The first groups are small, so that the first batch does not wait for others: of 1, 1, 2, 4, ... batches, until
// they have as many as the feed can take together.
class Convoy : public Stage {
 public:
  struct Batch : Result {
    Batch(std::shared_ptr<Feed> feed, std::shared_ptr<Feed::Group> group, unsigned i)
        : feed(std::move(feed)), group(std::move(group)), i(i) {}
    ~Batch() override {
      if (!is_read) feed->settle(*group);
    }

    const std::shared_ptr<Feed> feed;
    const std::shared_ptr<Feed::Group> group;
    const unsigned i;  // of the group
    bool is_read = false;
  };

  // Which batches cross together: `count`, from number `first` on.
  struct Span {
    std::uint64_t first;
    unsigned count;
  };

  explicit Convoy(std::shared_ptr<Feed> feed) : feed_(std::move(feed)) {}

  // That with batch `number`.
  static Span span_of(std::uint64_t number, unsigned together);

  std::unique_ptr<Result> begin(std::uint64_t number, unsigned thread) override;
  std::byte* memory(Result& result, std::size_t bytes) override;
  void finish(Result& result) override;

 private:
  const std::shared_ptr<Feed> feed_;
  std::shared_ptr<Feed::Group> group_;  // that of the last batch that was begun, until it is full
  std::uint64_t first_ = 0;
};

}  // namespace stepwell::cuda
