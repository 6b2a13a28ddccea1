// Which slot the state after each row of a round goes to, for one sequence of a stretch.
#pragma once
#include <vector>

#include "api.h"

class RoundStates {
 public:
  // `block`: tokens of a cache block. The states after its last token are kept, as far as there are slots: other
  // sequences may begin with them.
  void begin(const HeadstartStretched &of, int most_rounds, int block) {
    of_ = &of, current_ = of.state, block_ = block;
    spare_ = of.free_states - (most_rounds + of.nodes + 1);
    free_.assign(of.state_slots, of.state_slots + (of.states_after ? of.free_states : 0));
    first_ = count_ = 0;
  }

  // Adds where the state before a round of so many rows is, and where those after them go; false where slots are short.
  bool begin_round(int rows, std::vector<int32_t> &before, std::vector<int32_t> &after) {
    for (int row = first_; row < first_ + count_ - 1; ++row) {
      if ((of_->cached + row + 1) % block_ == 0 && spare_ > 0) {
        --spare_;
        continue;
      }
      free_.push_back(of_->states_after[row]);
      of_->states_after[row] = -1;
    }
    count_ = 0;
    if (rows > static_cast<int>(free_.size())) return false;
    taken_.assign(free_.end() - rows, free_.end());
    free_.resize(free_.size() - rows);
    before.push_back(current_);
    after.insert(after.end(), taken_.begin(), taken_.end());
    return true;
  }

  // These rows of the round stay, from place `first` behind the cached tokens on.
  void end_round(int first, const std::vector<int> &kept) {
    size_t next = 0;
    for (size_t row = 0; row < taken_.size(); ++row)
      if (next < kept.size() && kept[next] == static_cast<int>(row))
        of_->states_after[first + next++] = taken_[row];
      else
        free_.push_back(taken_[row]);
    current_ = taken_[kept.back()];
    first_ = first, count_ = static_cast<int>(kept.size());
  }

 private:
  const HeadstartStretched *of_ = nullptr;
  int current_ = -1, block_ = 1, spare_ = 0;
  int first_ = 0, count_ = 0;          // rows of the last round that stayed
  std::vector<int32_t> free_, taken_;  // the latter [row] of the round
};
