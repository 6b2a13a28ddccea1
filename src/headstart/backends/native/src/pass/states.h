// Where the states before and after the rows of a panel are, and the walks through them. Rows are taken in order,
// parents first, so that a row's bits do not depend on where a text is cut.
#pragma once
#include <algorithm>
#include <vector>

#include "api.h"
#include "kernels/vectors/vector.h"
#include "pass/state_store.h"

class StateLayout {
 public:
  static constexpr int kNowhere = -1;

  // One step of the recurrence. Sums are read from a working copy of the thread's, or from a place, and are left in a
  // working copy: the one that was read, where nobody else is to read it.
  struct Step {
    int row;       // of the panel; kNowhere: the step is replayed,
    int replayed;  // from this row of the journal
    int from;      // working copy, or kNowhere: what is in `before` is read
    int before;    // place
    int to;        // working copy
    int kept;      // place that gets a copy, or kNowhere
  };

  // Null, or what is wrong with the pass, which was found right otherwise.
  const char *build(const HeadstartPass &pass, const StateStore &store) {
    pass_ = &pass, store_ = &store, blank_ = store.slots();
    places_.assign(pass.rows, kNowhere), last_child_.assign(pass.rows, -1), journal_.assign(pass.rows, kNowhere);
    taken_.assign(blank_, false), guesses_.assign(pass.sequences, false);
    held_.clear(), free_.clear(), spares_ = 0;
    for (int s = 0; s < pass.sequences; ++s) {
      const int before = slot_before(s);
      if (before >= blank_) return "a state before a sequence's rows is outside the cache";
      if (before < 0 && pass.cached_lengths[s] > 0)
        return "a pass over cached tokens must say where the states after them are";
      if (before >= 0) taken_[before] = true;
    }
    for (int s = 0; s < pass.sequences; ++s) {
      int after = 0;
      for (int row = pass.row_starts[s]; row < pass.row_starts[s + 1]; ++row) {
        if (pass.parents[row] >= 0) last_child_[pass.parents[row]] = row;
        const int slot = pass.states_after ? pass.states_after[row] : kNowhere;
        if (slot < 0) continue;
        if (slot >= blank_) return "a state after a row is outside the cache";
        if (taken_[slot]) return "a state after a row would stand where another one does";
        places_[row] = slot, taken_[slot] = true, ++after;
      }
      guesses_[s] = after > 1;
    }
    store.ledger().undo();
    for (const int slot : places_)
      if (slot >= 0) store.ledger().clear(slot);
    return nullptr;
  }

  // The panel of rows [first, first + rows), which follows the one before.
  void begin_panel(int first, int rows) {
    first_ = first, end_ = first + rows;
    find_spares();
    parents_.resize(rows), before_.resize(rows), after_.resize(rows);
    copies_.resize(rows), readers_.assign(rows, 0), kept_.assign(rows, kNowhere);
    steps_.clear(), free_copies_.clear(), all_copies_ = 0;
    for (int row = first; row < end_; ++row) {
      const int above = parents_[row - first] = std::max(pass_->parents[row] - first, -1);
      if (above >= 0) ++readers_[above];
    }
    for (int row = first, sequence = 0; row < end_; ++row) {
      while (row >= pass_->row_starts[sequence + 1]) ++sequence;
      const int above = pass_->parents[row], start = slot_before(sequence);
      before_[row - first] = above >= 0 ? places_[above] : start >= 0 ? start : blank_;
      after_[row - first] = places_[row];
      if (store_->has_sums()) add_step(row, sequence);
    }
  }
  void end_panel() { store_->ledger().confirm(); }

  int rows() const { return end_ - first_; }
  // [panel row] the row before it; -1: it is not in the panel.
  int parent(int row) const { return parents_[row]; }
  // [panel row] slots, or spare places, of the rows that a convolution looks back at, or kNowhere. Before a row whose
  // parent is not in the panel there is one.
  int before(int row) const { return before_[row]; }
  int after(int row) const { return after_[row]; }
  // [panel row] of the journal, or kNowhere.
  int journal(int row) const { return journal_[first_ + row]; }
  const std::vector<Step> &steps() const { return steps_; }
  int copies() const { return all_copies_; }  // that a thread works in

 private:
  static constexpr int kMostReplayed = 16;

  int slot_before(int sequence) const { return pass_->states_before ? pass_->states_before[sequence] : kNowhere; }
  bool is_slot(int place) const { return place >= 0 && place < blank_; }

  // States without a slot that a later panel reads stand in a spare place as long.
  void find_spares() {
    for (size_t i = held_.size(); i-- > 0;)
      if (last_child_[held_[i]] < first_)
        free_.push_back(places_[held_[i]]), held_.erase(held_.begin() + static_cast<long>(i));
    for (int row = first_; row < end_; ++row)
      if (places_[row] < 0 && last_child_[row] >= end_) {
        if (free_.empty()) free_.push_back(blank_ + ++spares_);
        places_[row] = free_.back(), free_.pop_back();
        held_.push_back(row);
      }
    store_->rows().reserve(blank_ + 1 + spares_), store_->sums().reserve(blank_ + 1 + spares_);
  }

  void add_step(int row, int sequence) {
    const int own = row - first_, above = parents_[own], place = places_[row];
    Step step{own, kNowhere, kNowhere, SumsLedger::kBlank, kNowhere, kNowhere};
    if (above >= 0)
      step.from = copies_[above];
    else if (pass_->parents[row] >= 0)
      step.before = is_slot(before_[own]) ? store_->ledger().of(before_[own]).place : before_[own];
    else if (slot_before(sequence) >= 0)
      step.from = replay(slot_before(sequence), step.before);
    step.to = step.from < 0 || (above >= 0 && --readers_[above]) ? take_copy() : step.from;
    if (!is_slot(place))
      step.kept = place;
    else if (!guesses_[sequence] || !note(row, sequence))
      step.kept = store_->ledger().place_whole(place);
    copies_[own] = step.to, kept_[own] = step.kept;
    if (!readers_[own]) free_copies_.push_back(step.to);
    steps_.push_back(step);
  }

  int take_copy() {
    if (free_copies_.empty()) free_copies_.push_back(all_copies_++);
    const int copy = free_copies_.back();
    free_copies_.pop_back();
    return copy;
  }

  // The working copy that a slot's sums are made again in, once for all where the pass goes through all layers;
  // kNowhere: they stand in `before`.
  int replay(int slot, int &before) {
    const KeptSums sums = store_->ledger().of(slot);
    before = sums.place;
    if (sums.path.empty()) return kNowhere;
    const int kept = pass_->layers == store_->layers() ? store_->ledger().settle(slot) : kNowhere, copy = take_copy();
    for (const int row : sums.path)
      steps_.push_back({kNowhere, row, row == sums.path.front() ? kNowhere : copy, before, copy,
                        row == sums.path.back() ? kept : kNowhere});
    return copy;
  }

  // Has the journal take down what makes the sums after a row, instead of the sums; false where that is too much, or
  // what they are made of does not last.
  bool note(int row, int sequence) {
    SumsLedger &ledger = store_->ledger();
    if (last_child_[row] >= end_) return false;
    KeptSums from{SumsLedger::kBlank, {}};
    noted_.clear();
    for (int at = row;;) {
      noted_.push_back(at);
      const int above = pass_->parents[at];
      if (above < 0) {
        if (const int start = slot_before(sequence); start >= 0) from = ledger.of(start);
        break;
      }
      if (above < first_ || kept_[above - first_] >= 0) {
        if (!is_slot(places_[above])) return false;
        from.place = ledger.of(places_[above]).place;
        break;
      }
      at = above;
    }
    const auto is_new = [this](int each) { return journal_[each] < 0; };
    if (noted_.size() + from.path.size() > kMostReplayed ||
        std::count_if(noted_.begin(), noted_.end(), is_new) > ledger.free_rows())
      return false;
    taken_rows_.clear();
    for (size_t i = noted_.size(); i-- > 0;) {
      int &at = journal_[noted_[i]];
      if (at < 0) taken_rows_.push_back(at = ledger.take_row()), store_->journal().reserve(at + 1);
      from.path.push_back(at);
    }
    ledger.set(places_[row], from);
    for (const int taken : taken_rows_) ledger.release_row(taken);
    return true;
  }

  const HeadstartPass *pass_ = nullptr;
  const StateStore *store_ = nullptr;
  int blank_ = 0, spares_ = 0, first_ = 0, end_ = 0;
  std::vector<int> places_, last_child_, journal_;  // [row] of the pass
  std::vector<bool> taken_, guesses_;               // [slot]; [sequence] whether several of its rows may be the last
  std::vector<int> held_, free_;                    // rows with spare places; places that nobody needs any more
  std::vector<int> parents_, before_, after_, copies_, readers_, kept_;  // [panel row]
  std::vector<int> free_copies_, noted_, taken_rows_;
  std::vector<Step> steps_;
  int all_copies_ = 0;
};

// The states of one layer around the rows of a panel, and what enters its recurrence.
struct LayerStates {
  const StateLayout &layout;
  const StateStore &store;
  int layer;
  const StateShape &shape;
  float *scratch;  // [panel row][stride]
  size_t stride;

  float *rows_at(int place) const { return store.rows().at(place, layer); }
  float *sums_at(int place, int unit) const {
    return store.sums().at(place, layer) + static_cast<size_t>(unit) * shape.unit_size;
  }
  float *replayed(int row) const { return store.journal().at(row, layer); }
  // What is convolved of a row, and what its units share.
  float *entering(int row) const {
    return layout.journal(row) >= 0 ? replayed(layout.journal(row)) : scratch + row * stride;
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
      const float *rows = states.rows_at(layout.before(at)) + channel;
      for (int from = back - 1; place >= 0; --place, --from) seen[place] = load(rows + from * channels);
    }
    Lanes sum = seen[0] * load(kernel + channel);
    for (int i = 1; i <= back; ++i) sum = fma(seen[i], load(kernel + i * channels + channel), sum);
    give(row, bias ? sum + load(bias + channel) : sum);
    if (layout.after(row) == StateLayout::kNowhere) continue;
    float *to = states.rows_at(layout.after(row)) + channel;
    for (int i = 0; i < back; ++i) store(to + i * channels, seen[i + 1]);
  }
}

// One thread's units: all steps of each, `advance(unit, row, entered, before, after)` makes the sums [unit_size] after
// a step of those before it, which may be the same memory; row kNowhere: nobody reads them. `copies` are the thread's.
//
// What is kept, which nobody reads before the next pass, gets a copy past the caches, which would read it first.
template <class Advance>
static inline void recur(const LayerStates &states, int thread, int threads, float *copies, Advance &&advance) {
  const int size = states.shape.unit_size, units = states.shape.units;
  for (int unit = units * thread / threads; unit < units * (thread + 1) / threads; ++unit)
    for (const StateLayout::Step &step : states.layout.steps()) {
      const bool replays = step.row == StateLayout::kNowhere;
      const float *const entered = replays ? states.replayed(step.replayed) : states.entering(step.row);
      float *const after = copies + static_cast<size_t>(step.to) * size;
      advance(unit, step.row, entered,
              step.from < 0 ? states.sums_at(step.before, unit) : copies + static_cast<size_t>(step.from) * size,
              after);
      if (step.kept < 0) continue;
      float *const to = states.sums_at(step.kept, unit);
      if (size % 16 || reinterpret_cast<uintptr_t>(to) % 64)
        std::memcpy(to, after, size * sizeof(float));
      else
        for (int k = 0; k < size; k += 16) stream(to + k, load(after + k));
    }
  finish_streams();
}
