// Who multiplies which pairs of columns of a layer: every thread those of its own run, in the order they stand in; one
// that is done early, for cores are not equally fast all the time, takes over pairs from the end of another's run.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

class PairDeal {
 public:
  // Before the team starts.
  void reset(int threads) {
    if (threads != threads_) shares_ = std::make_unique<Share[]>(threads), threads_ = threads;
    for (int t = 0; t < threads; ++t) {
      shares_[t].turn = 0;
      for (auto &taken : shares_[t].taken) taken.store(0, std::memory_order_relaxed);
    }
  }

  int threads() const { return threads_; }

  // A thread begins its next layer. Barriers stand between layers, so that nobody is at the layer before any more: the
  // count of that one will be the next one's.
  void begin(int thread) {
    Share &share = shares_[thread];
    share.taken[++share.turn & 1].store(0, std::memory_order_relaxed);
  }

  struct Run {
    int first, count;
  };

  // The next of a thread's own `count` pairs, up to `most`; less than one where none is left.
  Run take(int thread, int count, int most) {
    const uint64_t before = taken(thread, thread).fetch_add(most * kFront, std::memory_order_relaxed);
    return {front(before), std::min(most, left(before, count))};
  }
  // The last one of another's.
  int take_over(int thread, int other, int count) {
    std::atomic<uint64_t> &share = taken(thread, other);
    if (left(share.load(std::memory_order_relaxed), count) <= 0) return -1;
    const uint64_t before = share.fetch_add(kBack, std::memory_order_relaxed);
    return left(before, count) > 0 ? count - 1 - back(before) : -1;
  }

 private:
  static constexpr uint64_t kFront = 1, kBack = uint64_t{1} << 32;
  struct alignas(64) Share {
    std::atomic<uint64_t> taken[2];  // by turns: how many from the front, and how many from the back
    int turn;
  };
  static int front(uint64_t taken) { return static_cast<int>(taken & (kBack - 1)); }
  static int back(uint64_t taken) { return static_cast<int>(taken >> 32); }
  static int left(uint64_t taken, int count) { return count - front(taken) - back(taken); }

  std::atomic<uint64_t> &taken(int thread, int of) { return shares_[of].taken[~shares_[thread].turn & 1]; }

  std::unique_ptr<Share[]> shares_;
  int threads_ = 0;
};
