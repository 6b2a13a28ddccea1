// One sequence's tree of a draft while it grows: which nodes go on, and which stay.
//
// Tree for tree what ConfidenceTrees of drafting/head_trees/trees.py makes of the same log-probabilities: a
// path's is a sum of floats from the root down, and of equal ones the shallower, then the earlier node is the better.
#pragma once
#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "api.h"

class GrowingTree {
 public:
  struct Beam {
    int node;        // -1: the root
    int guessed_by;  // row of logits after which it was guessed
    int row;         // of the tree's own, what is said after it
  };

  // A tree of its root alone, to grow as deep as `depth`.
  void begin(const HeadstartDrafted &of, int depth) {
    cached = of.cached + of.unread, held = 0;
    max_depth = depth;
    root = best = of.tokens[of.unread - 1], reached = 1.f;
    nodes_.clear(), paths.clear();
  }

  void add(int token, int parent, float score) { nodes_.push_back({token, parent, score}); }

  int token_of(const Beam &beam) const { return beam.node < 0 ? root : nodes_[beam.node].token; }

  // A level of children: the likeliest tokens of each row, [row][width], then the best of them are the beams.
  void grow(const HeadstartDraft &draft, const HeadstartDrafted &of, int level, const float *log_probs,
            const int32_t *tokens) {
    candidates_.clear();
    for (const Beam &beam : beams) {
      const int parent = beam.node;
      const float above = parent < 0 ? 0.f : nodes_[parent].score;
      for (int i = beam.row * draft.width; i < (beam.row + 1) * draft.width; ++i) {
        // Rounding must not lift a child above its parent; what is not a number is no guess.
        const float score = above + std::min(log_probs[i], 0.f);
        if (!(log_probs[i] > kImpossible) || !(score >= draft.min_log_prob) || tokens[i] < 0) continue;
        candidates_.push_back({static_cast<int>(nodes_.size()), first_row + beam.row, 0});
        add(tokens[i], parent, score);
      }
    }
    choose(draft, of, level);
    rows = static_cast<int>(beams.size());
  }

  // What the rows that guessed the beams saw, and the beams' own rows behind those that are held.
  void lengthen_paths(int level) {
    before_.swap(paths), paths.clear();
    for (size_t beam = 0; beam < beams.size(); ++beam) {
      const auto path = before_.begin() + (beams[beam].guessed_by - first_row) * (level - 1);
      paths.insert(paths.end(), path, path + level - 1);
      paths.push_back(cached + held + static_cast<int>(beam));
    }
  }

  // The best nodes so far, in the order they were found.
  void report(HeadstartDrafted &of) {
    kept_.resize(nodes_.size());
    std::iota(kept_.begin(), kept_.end(), 0);
    std::stable_sort(kept_.begin(), kept_.end(), [&](int a, int b) { return nodes_[a].score > nodes_[b].score; });
    kept_.resize(std::min<size_t>(kept_.size(), of.nodes));
    std::sort(kept_.begin(), kept_.end());
    place_.assign(nodes_.size(), -1);
    for (int i = 0; i < static_cast<int>(kept_.size()); ++i) {
      const Node &node = nodes_[kept_[i]];
      place_[kept_[i]] = i;
      of.node_tokens[i] = node.token, of.node_scores[i] = node.score;
      of.node_parents[i] = node.parent < 0 ? -1 : place_[node.parent];
    }
    of.found = static_cast<int>(kept_.size()), of.beams = rows;
  }

  int cached = 0, held = 0;         // true rows, and those of the draft behind them
  int max_depth = 0;                // levels at most
  int first_row = 0, rows = 0;      // of its logits
  int first_slot = 0;               // of its slots in what the one pass says
  int root = 0, best = 0;           // the last token; the last of a chain of the best ones, slot by slot
  const float *best_row = nullptr;  // logits after it
  float reached = 1.f;              // how likely that chain is accepted
  std::vector<Beam> beams;          // nodes whose children come next
  std::vector<int32_t> paths;       // [beam][level] logical slots that a beam sees
  std::vector<float> selected;      // [row][candidate] its logits, where a selector chooses

 private:
  struct Node {
    int token, parent;
    float score;
  };

  void choose(const HeadstartDraft &draft, const HeadstartDrafted &of, int level) {
    beams.clear();
    if (level >= max_depth) return;
    const auto score = [&](const Beam &beam) { return nodes_[beam.node].score; };
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [&](const Beam &a, const Beam &b) { return score(a) > score(b); });
    const float bar = score_to_beat(of.nodes);
    for (const Beam &beam : candidates_) {
      if (static_cast<int>(beams.size()) == draft.width) return;
      if (score(beam) <= bar || score(beam) < draft.min_parent_log_prob) return;
      beams.push_back({beam.node, beam.guessed_by, static_cast<int>(beams.size())});
    }
  }

  // Children of a node that is not above this cannot be among the best `count`.
  float score_to_beat(int count) {
    if (static_cast<int>(nodes_.size()) < count) return kImpossible;
    scores_.clear();
    for (const Node &node : nodes_) scores_.push_back(node.score);
    std::nth_element(scores_.begin(), scores_.begin() + count - 1, scores_.end(), std::greater<float>());
    return scores_[count - 1];
  }

  static constexpr float kImpossible = -1e30f;

  std::vector<Node> nodes_;
  std::vector<Beam> candidates_;
  std::vector<float> scores_;
  std::vector<int32_t> before_;
  std::vector<int> kept_, place_;
};
