// DFlash 2's selector of paths (backends/torch/block_factors.py): of each slot the best few tokens are candidates, to
// whose logits it adds what the token before says of them, by the slot's state.
#pragma once
#include <cmath>
#include <vector>

#include "api.h"
#include "kernels/products/best.h"
#include "kernels/products/single_linear.h"
#include "rounds/block_factors.h"
#include "rounds/sampling.h"

class PathSelector {
 public:
  // What may be guessed in a slot.
  struct Slot {
    std::vector<int32_t> columns, tokens;  // [candidate] of logits, ascending, and the target's ids of them
    std::vector<float> said;               // [candidate] logits
    std::vector<int> pairs;                // of columns that hold candidates
    int size() const { return static_cast<int>(columns.size()); }
  };

  // Slots whose logits [slot][vocab] and states [slot][hidden] one pass gave. Null, or what is wrong.
  const char *begin(const HeadstartBlock &block, int slots, const float *logits, int vocab, const int32_t *target_ids,
                    const float *states, int threads) {
    slots_.resize(slots), by_state_.resize(static_cast<size_t>(slots) * block.rank);
#pragma omp parallel for num_threads(threads) if (slots > 1) schedule(static)
    for (int i = 0; i < slots; ++i)
      choose(slots_[i], logits + static_cast<size_t>(i) * vocab, vocab, block.candidates, target_ids);
    return static_cast<SingleLinear *>(block.by_state)->run(slots, states, by_state_.data());
  }

  const Slot &slot(int i) const { return slots_[i]; }

  // Logits [token][candidate] of a slot after each of these tokens.
  void follow(const HeadstartBlock &block, int i, const std::vector<int> &before, std::vector<float> &logits) {
    const Slot &slot = slots_[i];
    const size_t rank = block.rank, size = slot.columns.size();
    logits.resize(before.size() * size);
    for (size_t first = 0; first < before.size(); first += SingleLinear::kRows) {
      const size_t count = std::min<size_t>(SingleLinear::kRows, before.size() - first);
      inputs_.assign(count * rank, 0.f);
      for (size_t row = 0; row < count; ++row)
        if (const float *known = BlockFactors::known_of(block, before[first + row]))
          for (size_t k = 0; k < rank; ++k) inputs_[row * rank + k] = known[k] * by_state_[i * rank + k];
      size_t begin = 0, end = 0;  // candidates of a pair
      static_cast<SingleLinear *>(block.following)
          ->run_pairs(static_cast<int>(count), inputs_.data(), slot.pairs,
                      [&](int row, int rows, int column, int columns, const float *out) {
                        if (row == 0) {
                          begin = end;
                          while (end < size && slot.columns[end] < column + columns) ++end;
                        }
                        for (int r = 0; r < rows; ++r, out += kColumns)
                          for (size_t at = begin; at < end; ++at)
                            logits[(first + row + r) * size + at] = slot.said[at] + out[slot.columns[at] - column];
                      });
    }
  }

 private:
  static void choose(Slot &slot, const float *logits, int vocab, int most, const int32_t *target_ids) {
    slot.columns.clear(), slot.tokens.clear(), slot.said.clear(), slot.pairs.clear();
    const float least = most < vocab ? ranked(logits, vocab, most) : -INFINITY;
    const float bar = std::nextafter(least, -INFINITY);
    above_bar(
        logits, vocab, [&] { return bar; },
        [&](int column) {
          slot.columns.push_back(column), slot.tokens.push_back(target_ids[column]),
              slot.said.push_back(logits[column]);
          if (slot.pairs.empty() || slot.pairs.back() != column / kColumns) slot.pairs.push_back(column / kColumns);
        });
  }

  std::vector<Slot> slots_;
  std::vector<float> by_state_;  // [slot][rank]
  std::vector<float> inputs_;    // [token][rank]
};
