// Memory in huge pages, and a barrier that yields.
#pragma once
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "kernels/traits.h"

// Zero-filled memory aligned to 2 MB: weights are read in one long stream, and 4 KB pages would stop the prefetch at
// every border.
class HugeBuffer {
 public:
  HugeBuffer() = default;
  explicit HugeBuffer(size_t bytes) : size_(bytes) {
    if (bytes == 0) return;
    mapped_ = (bytes + 2 * kHugePage - 1) / kHugePage * kHugePage;
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) {
      base_ = nullptr;
      throw std::bad_alloc();
    }
#if defined(MADV_HUGEPAGE)
    madvise(base_, mapped_, MADV_HUGEPAGE);
#endif
    const auto address = (reinterpret_cast<uintptr_t>(base_) + kHugePage - 1) / kHugePage * kHugePage;
    data_ = reinterpret_cast<char *>(address);
  }
  ~HugeBuffer() {
    if (base_) munmap(base_, mapped_);
  }
  HugeBuffer(HugeBuffer &&other) noexcept { *this = static_cast<HugeBuffer &&>(other); }
  HugeBuffer &operator=(HugeBuffer &&other) noexcept {
    if (this != &other) {
      if (base_) munmap(base_, mapped_);
      base_ = other.base_, data_ = other.data_, size_ = other.size_, mapped_ = other.mapped_;
      other.base_ = nullptr, other.data_ = nullptr, other.size_ = 0;
    }
    return *this;
  }

  char *data() const { return data_; }
  size_t size() const { return size_; }

 private:
  static constexpr size_t kHugePage = 2u << 20;
  void *base_ = nullptr;
  char *data_ = nullptr;
  size_t size_ = 0, mapped_ = 0;
};

// Zero-filled memory aligned to a cache line, for buffers that are read and written all the time.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes) : data_(static_cast<char *>(std::aligned_alloc(64, (bytes + 63) / 64 * 64))) {
    if (!data_) throw std::bad_alloc();
    std::memset(data_.get(), 0, (bytes + 63) / 64 * 64);
  }
  char *data() const { return data_.get(); }
  template <class T>
  T *as() const {
    return reinterpret_cast<T *>(data_.get());
  }

 private:
  struct Free {
    void operator()(char *p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> data_;
};

// All threads of a team meet here. Waiting spins shortly and then yields: on a shared core the thread that is waited
// for may need this one's time slice.
class Barrier {
 public:
  void reset(int threads) {
    threads_ = threads;
    arrived_.store(0, std::memory_order_relaxed);
  }
  // `phase` counts this thread's barriers since the reset; `meanwhile` is done again and again while it waits.
  template <class Work>
  void wait(int &phase, Work &&meanwhile) {
    if (threads_ == 1) return;
    const int64_t target = static_cast<int64_t>(threads_) * ++phase;
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == target) return;
    for (int spins = 0; arrived_.load(std::memory_order_acquire) < target; ++spins) {
      meanwhile();
      pause_core();
      if (spins >= kSpins) {
        sched_yield();
        spins = 0;
      }
    }
  }

 private:
  static constexpr int kSpins = 2000;
  alignas(64) std::atomic<int64_t> arrived_{0};
  alignas(64) int threads_ = 1;
};
