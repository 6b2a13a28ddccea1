// The likeliest paths where each depth has one law, whatever stands above it (DDTree, arXiv:2604.12989): node for node
// what likeliest_paths of drafting/head_trees/marginal_trees.py finds.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <queue>
#include <tuple>
#include <vector>

class LikeliestPaths {
 public:
  // The best `nodes` paths to `put(token, parent, depth, score)`, parents first. `log_probs` and `tokens` are [slots]
  // [ranks], the likeliest first; tokens below 0 cannot be.
  template <class Put>
  void find(const float *log_probs, const int32_t *tokens, int slots, int ranks, int nodes, double min_log_prob,
            Put &&put) {
    // A path's product falls with every token and every rank, so the best path that is not taken yet is the next
    // sibling or the first child of one that is.
    const auto offer = [&](double above, int slot, int parent, int rank) {
      while (slot < slots && rank < ranks && !possible(log_probs, tokens, slot * ranks + rank)) ++rank;
      if (slot == slots || rank >= ranks) return;
      // Rounding must not lift a token above certainty.
      const double score = above + std::min(static_cast<double>(log_probs[slot * ranks + rank]), 0.0);
      if (score >= min_log_prob) heap_.emplace(-score, slot, parent, rank);
    };
    heap_ = {}, scores_.clear();
    offer(0.0, 0, kNoParent, 0);
    while (!heap_.empty() && static_cast<int>(scores_.size()) < nodes) {
      const auto [negative, slot, parent, rank] = heap_.top();
      heap_.pop();
      const int node = static_cast<int>(scores_.size());
      scores_.push_back(-negative);
      put(tokens[slot * ranks + rank], parent, slot + 1, static_cast<float>(-negative));
      offer(parent == kNoParent ? 0.0 : scores_[parent], slot, parent, rank + 1);
      offer(-negative, slot + 1, node, 0);
    }
  }

 private:
  using Offer = std::tuple<double, int, int, int>;  // negative score, slot, parent, rank
  static constexpr int kNoParent = -1;

  static bool possible(const float *log_probs, const int32_t *tokens, int place) {
    return log_probs[place] > -INFINITY && tokens[place] >= 0;
  }

  std::priority_queue<Offer, std::vector<Offer>, std::greater<Offer>> heap_;
  std::vector<double> scores_;
};
