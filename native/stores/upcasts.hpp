// Floats of mapped files made wider, batch by batch, ahead of who reads them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "blocks.hpp"
#include "stores/cuts.hpp"
#include "stores/readahead.hpp"
#include "stores/upcast.hpp"

namespace stepwell {

// Batches are made in pieces by the caller and by helpers. While the caller does other things, helpers go
// on with one batch, or with two where the window has room for them: nobody waits for a batch's last piece.
class Upcasts {
 public:
  struct Batch {
    BlockRef block;
    std::size_t values;
  };

  // Each cut becomes a batch of floats, or of doubles.
  Upcasts(Cuts cuts, std::size_t window, FloatKind kind, bool doubles, unsigned threads);
  ~Upcasts();
  Upcasts(const Upcasts&) = delete;
  Upcasts& operator=(const Upcasts&) = delete;

  // The next batch, nothing behind the last. Throws FormatError when a file has become shorter. Call
  // without the GIL, from one thread.
  std::optional<Batch> next();

 private:
  struct Making {
    Cut cut;
    std::size_t values, piece, pieces;  // values, those of a piece
    BlockRef block{};
    std::size_t begun = 0, done = 0;  // pieces
    std::exception_ptr error{};

    bool is_done() const { return done == pieces; }
  };
  // What helpers touch. A forked child, which has no helpers, begins with another one.
  struct Shared {
    std::mutex mutex;
    std::condition_variable room;   // for helpers: there is something to make
    std::condition_variable ready;  // for the caller: its batch is done
    std::deque<Making> makings;     // the caller's next batch, and one behind it
    Cut next{};                     // the batch behind those
    unsigned asleep = 0;            // helpers, until they are called
    bool stop = false;
    std::vector<std::thread> helpers;
  };

  void help();
  bool work(std::unique_lock<std::mutex>& lock, Readahead::Watch& watch);
  Making* begin_batch();
  void convert(const Making& making, std::size_t piece, std::uint64_t done_with, Readahead::Watch& watch);
  std::size_t wide() const { return doubles_ ? sizeof(double) : sizeof(float); }

  const Cuts cuts_;
  const std::size_t depth_, makers_;
  const FloatKind kind_;
  const bool doubles_;
  Readahead ahead_;
  Readahead::Watch watch_;
  Cut next_;  // the caller's next batch
  int process_;
  std::unique_ptr<Shared> shared_;
};

}  // namespace stepwell
