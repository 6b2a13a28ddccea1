// Rows of a panel that go on behind the last layer's keys and values: those that somebody asks something of. Of a
// prompt that is but the last one, and of a head, which has one layer, all the others need next to nothing.
#pragma once
#include <algorithm>
#include <vector>

#include "api.h"

class FinishedRows {
 public:
  // `together`: whoever goes on behind the context rows goes on with all of these.
  void begin_pass(const HeadstartPass &pass, bool together) {
    pass_ = &pass, together_ = together;
    const auto is_behind = [&](int tap) { return tap < 0 || tap == pass.layers; };
    whole_ = !pass.lean && std::any_of(pass.tap_layers, pass.tap_layers + pass.taps, is_behind);
  }

  // The panel of rows [first, first + rows).
  void begin_panel(int first, int rows) {
    rows_.clear(), places_.assign(rows, -1);
    const auto is_among = [](const int32_t *list, int count, int row) {
      return std::binary_search(list, list + count, row);
    };
    for (int row = 0; row < rows; ++row)
      if (whole_ || (together_ && first + row >= pass_->context_rows) ||
          is_among(pass_->logit_rows, pass_->wanted, first + row) ||
          is_among(pass_->best_rows, pass_->best, first + row))
        places_[row] = count(), rows_.push_back(row);
  }

  bool are_all() const { return rows_.size() == places_.size(); }
  int count() const { return static_cast<int>(rows_.size()); }
  int row(int place) const { return rows_[place]; }
  const int32_t *rows() const { return rows_.data(); }
  // [panel row] its place among them, or -1.
  const int32_t *places() const { return places_.data(); }

 private:
  const HeadstartPass *pass_ = nullptr;
  bool whole_ = true, together_ = false;
  std::vector<int32_t> rows_, places_;
};
