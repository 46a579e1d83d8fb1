#include "stores/upcasts.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "files/guard.hpp"

namespace stepwell {
namespace {

// The least values that one thread converts at a time; a piece costs a few calls to the system.
constexpr std::size_t kLeastPiece = std::size_t{1} << 16;
// Fewer than some machines have cores: memory is not faster than that, and each loop has its own.
constexpr unsigned kMostMakers = 8;
constexpr std::chrono::microseconds kLook{200};
constexpr int kLooks = 100;

}  // namespace

Upcasts::Upcasts(Cuts cuts, std::size_t window, FloatKind kind, bool doubles, unsigned threads)
    : cuts_(std::move(cuts)),
      depth_(window / cuts_.step() >= 2 ? 2 : 1),
      makers_(std::clamp(threads, 1u, kMostMakers)),
      kind_(kind),
      doubles_(doubles),
      ahead_(cuts_.stretches(), window, false, cuts_.skip()),
      next_(cuts_.first()),
      process_(getpid()),
      shared_(std::make_unique<Shared>()) {
  shared_->next = next_;
  try {
    for (std::size_t i = 1; i < makers_; ++i) shared_->helpers.emplace_back([this] { help(); });
  } catch (const std::system_error&) {
    // The system gives no more threads; those that are there, or none, do as well.
  }
}

Upcasts::~Upcasts() {
  if (getpid() != process_) {
    (void)shared_.release();  // its helpers do not exist here, and may have held its mutex
    return;
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
  }
  shared_->room.notify_all();
  for (auto& helper : shared_->helpers) helper.join();
}

std::optional<Upcasts::Batch> Upcasts::next() {
  if (getpid() != process_) {
    (void)shared_.release();
    shared_ = std::make_unique<Shared>();
    shared_->next = next_;
    process_ = getpid();
  }
  Shared& s = *shared_;
  std::unique_lock lock(s.mutex);
  while (s.makings.empty() || !s.makings.front().is_done()) {
    if (work(lock, watch_)) continue;
    if (s.makings.empty()) return std::nullopt;
    s.ready.wait(lock, [&] { return s.makings.front().is_done(); });
  }
  Making made = std::move(s.makings.front());
  s.makings.pop_front();
  next_ = cuts_.after(made.cut);
  const bool wake = s.asleep > 0;
  lock.unlock();
  if (wake) s.room.notify_all();
  if (made.error) std::rethrow_exception(made.error);
  return Batch{std::move(made.block), made.values};
}

void Upcasts::help() {
  Shared& s = *shared_;
  Readahead::Watch watch;
  std::unique_lock lock(s.mutex);
  while (!s.stop) {
    if (work(lock, watch)) continue;
    const auto called = [&] { return s.stop || (s.makings.size() < depth_ && !s.next.is_end()); };
    // For a while it looks by itself: to wake a thread takes the caller longer than all the rest.
    for (int looks = 0; looks < kLooks && !called(); ++looks)
      s.room.wait_until(lock, std::chrono::system_clock::now() + kLook);
    ++s.asleep;
    s.room.wait(lock, called);
    --s.asleep;
  }
}

// Makes a piece, if there is one to make.
bool Upcasts::work(std::unique_lock<std::mutex>& lock, Readahead::Watch& watch) {
  Shared& s = *shared_;
  const auto open = std::ranges::find_if(s.makings, [](const Making& each) { return each.begun < each.pieces; });
  Making* const making = open != s.makings.end() ? &*open : begin_batch();
  if (making == nullptr) return false;
  if (making->is_done()) return true;  // there was no memory for it
  const std::size_t piece = making->begun++;
  const std::uint64_t done_with = s.makings.front().cut.before;
  lock.unlock();
  std::exception_ptr error;
  try {
    convert(*making, piece, done_with, watch);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  if (error) {
    making->error = error;
    making->done += making->pieces - making->begun;  // the others need not be made
    making->begun = making->pieces;
  }
  ++making->done;
  if (making->is_done() && making == &s.makings.front()) s.ready.notify_one();
  return true;
}

Upcasts::Making* Upcasts::begin_batch() {
  Shared& s = *shared_;
  if (s.makings.size() >= depth_ || s.next.is_end()) return nullptr;
  const std::size_t values = s.next.bytes / bytes_of(kind_);
  const std::size_t piece = makers_ == 1 ? values : std::max(kLeastPiece, values / (2 * makers_) + 1);
  Making making{s.next, values, piece, (values + piece - 1) / piece};
  try {
    making.block = shared_blocks()->take(values * wide());
  } catch (...) {
    making.error = std::current_exception();  // thrown when its turn comes
    making.begun = making.done = making.pieces;
  }
  s.makings.push_back(std::move(making));
  s.next = cuts_.after(s.next);
  return &s.makings.back();
}

void Upcasts::convert(const Making& making, std::size_t piece, std::uint64_t done_with,
                      Readahead::Watch& watch) {
  const std::size_t size = bytes_of(kind_), first = piece * making.piece;
  const std::size_t count = std::min(making.piece, making.values - first);
  ahead_.wait(done_with, making.cut.before + (first + count) * size, watch);
  const Stretch& of = cuts_.of(making.cut);
  if (of.blocks) of.blocks->check(making.cut.at + first * size, making.cut.at + (first + count) * size);
  const auto from = cuts_.memory(making.cut).subspan(first * size, count * size);
  const auto to = [&]<class To>(To* values) {
    const auto work = [&] { upcast(kind_, from, std::span(values + first, count), making.values * wide()); };
    guarded(from, of.path, work, of.begin + making.cut.at + first * size);
  };
  doubles_ ? to(reinterpret_cast<double*>(making.block.get())) : to(reinterpret_cast<float*>(making.block.get()));
}

}  // namespace stepwell
