// Guesses of several drafters in one tree, of which as many are verified as pay: what the Python modules
// drafting/planning/merged.py and round_costs.py do for one sequence, node for node.
#pragma once
#include <numeric>
#include <unordered_map>

#include "api.h"
#include "guesses.h"

class Weighing {
 public:
  // At most `most` nodes, the likeliest.
  void choose(const HeadstartPlan &plan, const HeadstartGuesser *guessers, const Guesses (&guesses)[kGuessers],
              int most, HeadstartRound &round) {
    tree.clear();
    merge(guessers, guesses);
    std::vector<int> &ranked = order_;
    ranked.resize(merged_.size());
    std::iota(ranked.begin(), ranked.end(), 0);
    std::stable_sort(ranked.begin(), ranked.end(), [&](int a, int b) { return reach_[a] > reach_[b]; });
    ranked.resize(std::min<size_t>(ranked.size(), most));
    ranked.resize(cut(plan, ranked, round));
    for (const int node : ranked) {
      const int credited = plan.merits[owners_[node]];
      round.gains[credited] += reach_[node];
      ++round.verified[credited];
    }
    std::sort(ranked.begin(), ranked.end());
    place_.assign(merged_.size(), kRoot);
    for (const int node : ranked) {
      place_[node] = tree.size();
      const int parent = merged_.parents[node];
      tree.add(merged_.tokens[node], parent == kRoot ? kRoot : place_[parent], 0);
    }
  }

  Guesses tree;  // what is to be verified

 private:
  static constexpr double kMostCertain = 0.995;

  // Equal paths are one node, with the surer drafter's chance.
  void merge(const HeadstartGuesser *guessers, const Guesses (&all)[kGuessers]) {
    merged_.clear(), chances_.clear(), owners_.clear(), nodes_.clear();
    children_.clear(), children_.resize(1);  // [parent + 1]
    for (int i = 0; i < kGuessers; ++i) {
      const Guesses &guesses = all[i];
      place_.clear();
      for (int k = 0; k < guesses.size(); ++k) {
        const int parent = guesses.parents[k] == kRoot ? kRoot : place_[guesses.parents[k]];
        const double chance = guessers[i].rates[guesses.grades[k]];
        const int64_t path = static_cast<int64_t>(parent + 1) << 32 | static_cast<uint32_t>(guesses.tokens[k]);
        const auto [at, is_new] = nodes_.try_emplace(path, merged_.size());
        const int node = at->second;
        if (is_new) {
          merged_.add(guesses.tokens[k], parent, 0);
          chances_.push_back(chance), owners_.push_back(1 << i);
          children_.emplace_back();
          children_[parent + 1].push_back(node);
        } else {
          chances_[node] = std::max(chances_[node], chance);
          owners_[node] |= 1 << i;
        }
        place_.push_back(node);
      }
    }
    for (std::vector<int> &siblings : children_) share(siblings);
    reach_.clear();
    for (int node = 0; node < merged_.size(); ++node) {
      const double certain = std::min(chances_[node], kMostCertain);
      reach_.push_back(merged_.parents[node] == kRoot ? certain : certain * reach_[merged_.parents[node]]);
    }
  }

  // The chances of one parent's children are scaled down to what surer rivals leave.
  void share(std::vector<int> &siblings) {
    std::stable_sort(siblings.begin(), siblings.end(), [&](int a, int b) { return chances_[a] > chances_[b]; });
    for (size_t i = 1; i < siblings.size(); ++i) {
      double claimed = 0.0;
      for (size_t k = 0; k < i; ++k)
        if (!(owners_[siblings[k]] & owners_[siblings[i]])) claimed += chances_[siblings[k]];
      if (claimed != 0.0) chances_[siblings[i]] *= std::max(0.0, 1.0 - claimed);
    }
  }

  // How many of the ranked nodes make the most tokens per second (`RoundCosts.size`).
  int cut(const HeadstartPlan &plan, const std::vector<int> &ranked, HeadstartRound &round) {
    double tokens = 1.0;
    round.expected_tokens = tokens, round.expected_seconds = plan.pass_seconds[0] + plan.other_seconds;
    int count = 0;
    const int most = std::min<int>(ranked.size(), plan.passes - 1);
    for (int node = 1; node <= most; ++node) {
      tokens += reach_[ranked[node - 1]];
      const double seconds = plan.pass_seconds[node] + plan.other_seconds;
      if (tokens * round.expected_seconds > round.expected_tokens * seconds)
        round.expected_tokens = tokens, round.expected_seconds = seconds, count = node;
    }
    round.row_seconds = count ? (plan.pass_seconds[count] - plan.pass_seconds[0]) / count : 0.0;
    return count;
  }

  Guesses merged_;
  std::vector<double> chances_, reach_;  // [node]
  std::vector<int> owners_, order_, place_;
  std::vector<std::vector<int>> children_;
  std::unordered_map<int64_t, int> nodes_;  // by parent and token
};
