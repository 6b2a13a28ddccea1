// What layers keep of a text beside keys and values: states, one after each of some tokens, in slots.
//
// Nobody changes a state that somebody may read: a row reads the one before it and writes the one after it somewhere
// else. A row whose only reader is the row behind it needs no slot: its state goes on in a scratch of the thread. Rows
// are taken in order, parents first, so that a row's bits do not depend on where a text is cut.
#pragma once
#include <algorithm>
#include <vector>

#include "api.h"
#include "kernels/platform.h"
#include "kernels/vectors/vector.h"

// Of one layer: the rows that its convolution looks back at [back][channels], the oldest first, and behind them what
// each of its units has summed up [units][unit_size].
struct StateShape {
  int back = 0, channels = 0, units = 0, unit_size = 0;

  size_t rows_size() const { return static_cast<size_t>(back) * channels; }
  size_t size() const { return rows_size() + static_cast<size_t>(units) * unit_size; }
};

// Slots of float32 states, and behind them a blank one: that of an empty text.
class StateStore {
 public:
  StateStore(const std::vector<StateShape> &layers, int slots) : slots_(slots), layers_(layers) {
    for (const StateShape &shape : layers_) begins_.push_back(size_), size_ += (shape.size() + 15) / 16 * 16;
    memory_ = HugeBuffer((static_cast<size_t>(slots) + 1) * slot_bytes());
  }

  int slots() const { return slots_; }
  size_t bytes() const { return memory_.size(); }
  size_t slot_bytes() const { return size_ * sizeof(float); }
  const StateShape &shape(int layer) const { return layers_[layer]; }
  size_t begin(int layer) const { return begins_[layer]; }
  float *slot(int slot) const { return reinterpret_cast<float *>(memory_.data()) + slot * size_; }

 private:
  int slots_;
  std::vector<StateShape> layers_;
  std::vector<size_t> begins_;  // of each layer in a slot, in floats
  size_t size_ = 0;
  HugeBuffer memory_;
};

// Where the states before and after the rows of a pass are. Places: slots of the store, its blank one, then spare ones,
// which last as long as somebody is to read them.
class StateLayout {
 public:
  static constexpr int kRunning = -1;  // it goes on in the thread's scratch, if anybody reads it

  // Null, or what is wrong with the pass, which was found right otherwise.
  const char *build(const HeadstartPass &pass, int slots) {
    pass_ = &pass, blank_ = slots;
    places_.assign(pass.rows, kRunning), last_child_.assign(pass.rows, -1), is_far_.assign(pass.rows, 0);
    held_.clear(), free_.clear(), spares_ = 0;
    for (int s = 0; s < pass.sequences; ++s) {
      const int before = pass.states_before ? pass.states_before[s] : -1;
      if (before >= slots) return "a state before a sequence's rows is outside the cache";
      if (before < 0 && pass.cached_lengths[s] > 0)
        return "a pass over cached tokens must say where the states after them are";
    }
    for (int row = 0; row < pass.rows; ++row) {
      if (pass.states_after && pass.states_after[row] >= 0) places_[row] = pass.states_after[row];
      if (places_[row] >= slots) return "a state after a row is outside the cache";
      const int parent = pass.parents[row];
      if (parent >= 0) last_child_[parent] = row, is_far_[parent] |= row != parent + 1;
    }
    return nullptr;
  }

  // The panel of rows [first, first + rows), which follows the one before.
  void begin_panel(int first, int rows) {
    const auto is_read = [&](int row) { return last_child_[row] >= first; };
    for (size_t i = held_.size(); i-- > 0;)
      if (!is_read(held_[i])) free_.push_back(places_[held_[i]]), held_.erase(held_.begin() + static_cast<long>(i));
    for (int row = first; row < first + rows; ++row)
      if (places_[row] < 0 && last_child_[row] >= 0 && (is_far_[row] || last_child_[row] >= first + rows)) {
        if (free_.empty()) free_.push_back(blank_ + ++spares_);
        places_[row] = free_.back(), free_.pop_back();
        held_.push_back(row);
      }
    parents_.resize(rows), before_.resize(rows), after_.resize(rows), read_again_.resize(rows);
    for (int row = first, sequence = 0; row < first + rows; ++row) {
      while (row >= pass_->row_starts[sequence + 1]) ++sequence;
      const int parent = pass_->parents[row];
      const int start = pass_->states_before ? pass_->states_before[sequence] : -1;
      parents_[row - first] = std::max(parent - first, -1);
      before_[row - first] = parent >= 0 ? places_[parent] : start >= 0 ? start : blank_;
      after_[row - first] = places_[row];
      read_again_[row - first] = is_far_[row];
    }
  }

  // [panel row] the row before it; -1: it is not in the panel.
  int parent(int row) const { return parents_[row]; }
  // [panel row] places, or kRunning. That before a row whose parent is not in the panel is a place.
  int before(int row) const { return before_[row]; }
  int after(int row) const { return after_[row]; }
  // [panel row] whether a row reads it that is not the next one.
  bool is_read_again(int row) const { return read_again_[row]; }
  int rows() const { return static_cast<int>(parents_.size()); }

  int blank() const { return blank_; }
  // Spare places that there have been, from blank() + 1 on.
  int spares() const { return spares_; }

 private:
  const HeadstartPass *pass_ = nullptr;
  int blank_ = 0, spares_ = 0;
  std::vector<int32_t> places_, last_child_;  // [row] of the pass
  std::vector<char> is_far_;                  // [row] whether a row reads it that is not the next one
  std::vector<int32_t> held_, free_;          // rows with spare places; places that nobody needs any more
  std::vector<int32_t> parents_, before_, after_;
  std::vector<char> read_again_;
};

// The states of one layer around the rows of a panel.
struct LayerStates {
  const StateLayout &layout;
  const StateShape &shape;
  const StateStore &store;
  const std::vector<HugeBuffer> &spares;
  size_t begin;

  float *at(int place) const {
    const int blank = layout.blank();
    return (place <= blank ? store.slot(place) : reinterpret_cast<float *>(spares[place - blank - 1].data())) + begin;
  }
  float *unit_at(int place, int unit) const {
    return at(place) + shape.rows_size() + static_cast<size_t>(unit) * shape.unit_size;
  }
};

constexpr int kMostLength = 16;  // of a convolution

// A convolution over sixteen channels of all rows, added up in order of the rows: `raw(row)` is what a row brings,
// `give(row, sum)` takes what comes of it. What later rows will look back at goes to the states after the rows.
//
// kernel [shape.back + 1][shape.channels], the last ones for the row itself; bias [shape.channels] or null.
template <class Raw, class Give>
static inline void convolve(const LayerStates &states, int channel, const float *kernel, const float *bias, Raw &&raw,
                            Give &&give) {
  const StateLayout &layout = states.layout;
  const int back = states.shape.back, channels = states.shape.channels;
  Lanes seen[kMostLength];
  for (int row = 0; row < layout.rows(); ++row) {
    int at = row, place = back;
    for (;; at = layout.parent(at)) {
      seen[place--] = raw(at);
      if (place < 0 || layout.parent(at) < 0) break;
    }
    if (place >= 0) {
      const float *rows = states.at(layout.before(at)) + channel;
      for (int from = back - 1; place >= 0; --place, --from) seen[place] = load(rows + from * channels);
    }
    Lanes sum = seen[0] * load(kernel + channel);
    for (int i = 1; i <= back; ++i) sum = fma(seen[i], load(kernel + i * channels + channel), sum);
    give(row, bias ? sum + load(bias + channel) : sum);
    if (layout.after(row) == StateLayout::kRunning) continue;
    float *to = states.at(layout.after(row)) + channel;
    for (int i = 0; i < back; ++i) store(to + i * channels, seen[i + 1]);
  }
}

// One thread's units: all rows of each, `step(unit, row, before, after)` makes the state [unit_size] after a row of the
// one before it, which may be the same memory. `running` [unit_size] is the thread's.
//
// A state that the next row alone goes on from stays in the scratch; its slot, which nobody reads before the next pass,
// gets a copy past the caches, which would read it first.
template <class Step>
static inline void recur(const LayerStates &states, int thread, int threads, float *running, Step &&step) {
  const StateLayout &layout = states.layout;
  const int size = states.shape.unit_size;
  for (int unit = states.shape.units * thread / threads; unit < states.shape.units * (thread + 1) / threads; ++unit)
    for (int row = 0; row < layout.rows(); ++row) {
      const bool goes_on = row && layout.parent(row) == row - 1 && !layout.is_read_again(row - 1);
      const float *const before = goes_on ? running : states.unit_at(layout.before(row), unit);
      const int place = layout.after(row);
      float *const slot = place == StateLayout::kRunning ? running : states.unit_at(place, unit);
      float *const after = layout.is_read_again(row) ? slot : running;
      step(unit, row, before, after);
      if (slot == after) continue;
      if (size % 16 || reinterpret_cast<uintptr_t>(slot) % 64)
        std::memcpy(slot, after, size * sizeof(float));
      else
        for (int k = 0; k < size; k += 16) stream(slot + k, load(after + k));
    }
  finish_streams();
}
