// What layers keep of a text beside keys and values: states, one after each of some tokens, in slots.
//
// Nobody changes a state that somebody may read: a row reads the one before it and leaves the one after it in a slot.
// The large part of a state, what its units have summed up, is not written for every row that may be a text's last.
// The journal takes down what entered the recurrence there; when a pass reads the slot, the accepted rows are replayed,
// by the arithmetic of the rows themselves.
#pragma once
#include <algorithm>
#include <vector>

#include "kernels/platform.h"

// Of one layer: the rows that its convolution looks back at [back][channels], the oldest first; what each of its units
// has summed up [units][unit_size]; and of the journal what enters the recurrence at a row [journal_size].
struct StateShape {
  int back = 0, channels = 0, units = 0, unit_size = 0, journal_size = 0;

  size_t rows_size() const { return static_cast<size_t>(back) * channels; }
  size_t sums_size() const { return static_cast<size_t>(units) * unit_size; }
  size_t size() const { return rows_size() + sums_size(); }
};

// One part of the states of all layers, in places: so many at once, and more where they are needed.
class StatePart {
 public:
  void add_layer(size_t floats) { begins_.push_back(size_), size_ += (floats + 15) / 16 * 16; }
  void allocate(int places) { places_ = places, memory_ = HugeBuffer(places * bytes()); }
  void reserve(int places) {
    while (places_ + static_cast<int>(more_.size()) < places) more_.emplace_back(bytes());
  }

  size_t bytes() const { return size_ * sizeof(float); }  // of a place
  float *at(int place, int layer) const {
    float *const begin = place < places_ ? reinterpret_cast<float *>(memory_.data()) + place * size_
                                         : more_[place - places_].as<float>();
    return begin + begins_[layer];
  }

 private:
  std::vector<size_t> begins_;  // of each layer in a place, in floats
  size_t size_ = 0;
  int places_ = 0;
  HugeBuffer memory_;
  std::vector<AlignedBuffer> more_;
};

// Which of some things are held, and by how many.
class Holdings {
 public:
  explicit Holdings(int count) : holders_(count) {
    while (count) free_.push_back(--count);
  }
  int free() const { return static_cast<int>(free_.size()); }
  bool are_shared(int i) const { return holders_[i] > 1; }
  int take() {
    const int i = free_.back();
    free_.pop_back(), holders_[i] = 1;
    return i;
  }
  void hold(int i) { ++holders_[i]; }
  void release(int i) {
    if (!--holders_[i]) free_.push_back(i);
  }

 private:
  std::vector<int> holders_, free_;
};

// What a slot's sums are: those in a place, moved on by rows of the journal.
struct KeptSums {
  int place;
  std::vector<int> path;
};

// The sums of all slots. No more places are in use than there are slots, since each slot reads one; the first one is
// blank.
class SumsLedger {
 public:
  static constexpr int kBlank = 0;

  explicit SumsLedger(int slots) : of_(slots, {kBlank, {}}), places_(slots + 1), journal_(kRowsPerSlot * slots) {
    places_.take();
    for (int slot = 0; slot < slots; ++slot) places_.hold(kBlank);
  }

  const KeptSums &of(int slot) const { return of_[slot]; }
  int free_rows() const { return journal_.free(); }
  // One of the journal's, the caller's until it is released.
  int take_row() { return journal_.take(); }
  void release_row(int row) { journal_.release(row); }

  void set(int slot, KeptSums sums) {
    places_.hold(sums.place), hold(sums.path);
    places_.release(of_[slot].place), release(of_[slot].path);
    of_[slot] = std::move(sums);
  }
  void clear(int slot) { set(slot, {kBlank, {}}); }
  // A place for all sums of a slot that are to be written.
  int place_whole(int slot) {
    const int place = places_.take();
    set(slot, {place, {}}), places_.release(place);
    return place;
  }
  // The same for those that are there, of which what they are made of lasts until `confirm`.
  int settle(int slot) {
    settling_.push_back({slot, of_[slot]}), hold(of_[slot].path);
    const int place = of_[slot].place;
    if (places_.are_shared(place)) return place_whole(slot);
    set(slot, {place, {}});
    return place;
  }
  void confirm() {
    for (const Settling &each : settling_) release(each.before.path);
    settling_.clear();
  }
  // What was to be settled was not.
  void undo() {
    for (size_t i = settling_.size(); i-- > 0;) set(settling_[i].slot, settling_[i].before);
    confirm();
  }

 private:
  static constexpr int kRowsPerSlot = 4;  // with fewer, states are written whole

  struct Settling {
    int slot;
    KeptSums before;
  };

  void hold(const std::vector<int> &path) {
    for (const int row : path) journal_.hold(row);
  }
  void release(const std::vector<int> &path) {
    for (const int row : path) journal_.release(row);
  }

  std::vector<KeptSums> of_;  // [slot]
  Holdings places_, journal_;
  std::vector<Settling> settling_;
};

// The states of a cache, in float32.
class StateStore {
 public:
  StateStore(const std::vector<StateShape> &layers, int slots)
      : slots_(slots), layers_(layers), memory_(std::make_unique<Memory>(slots)) {
    for (const StateShape &shape : layers_) {
      memory_->rows.add_layer(shape.rows_size()), memory_->sums.add_layer(shape.sums_size());
      memory_->journal.add_layer(shape.journal_size);
    }
    memory_->rows.allocate(slots + 1), memory_->sums.allocate(slots + 1);
  }

  int slots() const { return slots_; }
  int layers() const { return static_cast<int>(layers_.size()); }
  size_t bytes() const { return (slots_ + 1) * (memory_->rows.bytes() + memory_->sums.bytes()); }
  const StateShape &shape(int layer) const { return layers_[layer]; }
  bool has_sums() const { return memory_->sums.bytes(); }

  // A slot's bytes to memory of `slot_size`; false: they are still to be replayed.
  bool read_slot(int slot, char *to) const {
    ledger().undo();  // what a failed pass was about to settle
    const KeptSums &kept = ledger().of(slot);
    if (!kept.path.empty()) return false;
    if (rows().bytes()) std::memcpy(to, rows().at(slot, 0), rows().bytes());
    if (has_sums()) std::memcpy(to + rows().bytes(), sums().at(kept.place, 0), sums().bytes());
    return true;
  }
  void write_slot(int slot, const char *from) const {
    ledger().undo();
    if (rows().bytes()) std::memcpy(rows().at(slot, 0), from, rows().bytes());
    if (!has_sums()) return;
    ledger().clear(slot);
    std::memcpy(sums().at(ledger().place_whole(slot), 0), from + rows().bytes(), sums().bytes());
  }
  size_t slot_size() const { return rows().bytes() + sums().bytes(); }

  // By slot, the blank one behind them, or a spare place behind that.
  StatePart &rows() const { return memory_->rows; }
  // By the ledger's places, or a spare one as above.
  StatePart &sums() const { return memory_->sums; }
  StatePart &journal() const { return memory_->journal; }
  SumsLedger &ledger() const { return memory_->ledger; }

 private:
  struct Memory {
    explicit Memory(int slots) : ledger(slots) {}
    StatePart rows, sums, journal;
    SumsLedger ledger;
  };

  int slots_;
  std::vector<StateShape> layers_;
  std::unique_ptr<Memory> memory_;
};
