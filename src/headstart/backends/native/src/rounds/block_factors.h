// What a block head knows of the token before a guess (backends/torch/block_factors.py): what it adds to the logits,
// and how likely the guess is accepted (DSpark, arXiv:2607.05147).
#pragma once
#include <vector>

#include "api.h"
#include "kernels/products/single_linear.h"

class BlockFactors {
 public:
  void clear() { inputs_.clear(), rows_.clear(); }

  // One more row for `follow`: to = from, and what `token` adds.
  void add(const HeadstartBlock &block, int token, const float *from, float *to) {
    inputs_.resize(inputs_.size() + block.rank, 0.f);
    if (const float *known = known_of(block, token)) std::copy_n(known, block.rank, inputs_.end() - block.rank);
    rows_.push_back({from, to});
  }

  // The logits of the rows that were added; the factor is read once for all of them. Null, or what is wrong.
  const char *follow(const HeadstartBlock &block) {
    auto &following = *static_cast<SingleLinear *>(block.following);
    return following.run_each(static_cast<int>(rows_.size()), inputs_.data(),
                              [&](int row, int count, int column, int columns, const float *out) {
                                for (int r = 0; r < count; ++r, out += kColumns) {
                                  const float *const from = rows_[row + r].from + column;
                                  float *const to = rows_[row + r].to + column;
                                  int k = 0;
                                  for (; k + 16 <= columns; k += 16) store(to + k, load(from + k) + load(out + k));
                                  for (; k < columns; ++k) to[k] = from[k] + out[k];
                                }
                              });
  }

  // How likely a guess is accepted if those before it were; `state` [hidden] says it.
  static float chance(const HeadstartBlock &block, const float *state, int hidden, int token) {
    const float *const known = block.sureness_reads_token ? known_of(block, token) : nullptr;
    float sum = block.sureness_bias;
    for (int k = 0; k < hidden; ++k) sum += block.sureness[k] * state[k];
    for (int k = 0; known && k < block.rank; ++k) sum += block.sureness[hidden + k] * known[k];
    return 1.f / (1.f + std::exp(-sum));
  }

  // [rank], or null where the head lacks the token.
  static const float *known_of(const HeadstartBlock &block, int token) {
    const int place = token >= 0 && token < block.tokens ? block.draft_ids[token] : -1;
    return place < 0 ? nullptr : block.before + static_cast<size_t>(place) * block.rank;
  }

 private:
  struct Row {
    const float *from;
    float *to;
  };

  std::vector<float> inputs_;  // [row][rank]
  std::vector<Row> rows_;
};
