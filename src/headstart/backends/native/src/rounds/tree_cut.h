// Guesses of several drafters for several sequences, of which as many are verified as pay: what the Python modules
// drafting/planning/merged.py and round_costs.py do, node for node.
#pragma once
#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "api.h"
#include "rounds/guesses.h"
#include "rounds/suffix_text.h"

// The guesses of all drafters for one sequence in one tree, each with its chance to be reached.
class Merged {
 public:
  // The guesses of the first of them. Equal paths are one node, with the mean of the drafters' chances. What they say
  // of each other goes into the grades.
  void merge(const HeadstartGuesser *guessers, Guesses (&all)[kGuessers], int first = kGuessers) {
    tree_.clear(), owners_.clear(), nodes_.clear();
    children_.clear(), children_.resize(1), heard_.assign(1, 0);  // [parent + 1]
    for (int i = 0; i < first; ++i) {
      const Guesses &guesses = all[i];
      std::vector<int> &place = places_[i];
      place.clear();
      for (int k = 0; k < guesses.size(); ++k) {
        const int parent = guesses.parents[k] == kRoot ? kRoot : place[guesses.parents[k]];
        const int64_t path = static_cast<int64_t>(parent + 1) << 32 | static_cast<uint32_t>(guesses.tokens[k]);
        const auto [at, is_new] = nodes_.try_emplace(path, tree_.size());
        if (is_new) {
          tree_.add(guesses.tokens[k], parent, 0);
          owners_.push_back(0), heard_.push_back(0);
          children_.emplace_back();
          children_[parent + 1].push_back(at->second);
        }
        owners_[at->second] |= 1 << i, heard_[parent + 1] |= 1 << i;
        place.push_back(at->second);
      }
    }
    tree_.chances.assign(tree_.size(), 0.0);
    for (int i = 0; i < first; ++i)
      for (int k = 0; k < all[i].size(); ++k) {
        const int node = places_[i][k], own = 1 << i;
        const bool agreed = owners_[node] != own, contradicted = heard_[tree_.parents[node] + 1] != own;
        int32_t &grade = all[i].grades[k];
        grade += agreed ? kAgreed : contradicted ? kContradicted : 0;
        tree_.chances[node] += guessers[i].rates[grade] / (agreed ? kGuessers : 1);
      }
    for (const std::vector<int> &siblings : children_) scale(siblings);
    reach_.clear();
    for (int node = 0; node < tree_.size(); ++node) {
      const double certain = tree_.chances[node] = std::min(tree_.chances[node], kMostCertain);
      reach_.push_back(tree_.parents[node] == kRoot ? certain : certain * reach_[tree_.parents[node]]);
    }
  }

  // Where a text to copy from has not guessed the likeliest path by itself, what it holds behind that.
  void go_on(const HeadstartGuesser *guessers, int most, int depth) {
    path_.clear();
    int leaf = kRoot;
    while (!children_[leaf + 1].empty()) {
      const std::vector<int> &below = children_[leaf + 1];
      leaf = *std::max_element(below.begin(), below.end(), [&](int a, int b) { return reach_[a] < reach_[b]; });
      path_.push_back(tree_.tokens[leaf]);
    }
    const int steps = static_cast<int>(path_.size());
    for (int i = 0; i < kGuessers && steps && steps < depth; ++i) {
      const HeadstartSuffix *suffix = guessers[i].suffix;
      if (!suffix || (owners_[leaf] >> i & 1)) continue;
      static_cast<SuffixText *>(suffix->text)->guess(*suffix, path_.data(), steps, most, depth - steps, more_);
      const int first = tree_.size();
      for (int k = 0; k < more_.size(); ++k) {
        const int parent = more_.parents[k] == kRoot ? leaf : first + more_.parents[k];
        tree_.add(more_.tokens[k], parent, 0, guessers[i].rates[more_.grades[k]]);
        owners_.push_back(1 << i);
        children_.emplace_back();
        children_[parent + 1].push_back(first + k);
      }
      scale(children_[leaf + 1]);
      for (int node = first; node < tree_.size(); ++node) scale(children_[node + 1]);
      for (int node = first; node < tree_.size(); ++node) {
        tree_.chances[node] = std::min(tree_.chances[node], kMostCertain);
        reach_.push_back(tree_.chances[node] * reach_[tree_.parents[node]]);
      }
      return;
    }
  }

  // The nodes of highest reach, the highest first: a tree.
  const std::vector<int> &ranked(int most) {
    ranked_.resize(tree_.size());
    std::iota(ranked_.begin(), ranked_.end(), 0);
    std::stable_sort(ranked_.begin(), ranked_.end(), [&](int a, int b) { return reach_[a] > reach_[b]; });
    ranked_.resize(std::min<size_t>(ranked_.size(), std::max(most, 0)));
    return ranked_;
  }

  // These nodes, the likeliest first, which hold all parents of theirs, without grades. Depth first: rows of the
  // likeliest path stand where they stay once they are accepted.
  void pick(const std::vector<int> &nodes, Guesses &out) {
    out.clear();
    place_.resize(tree_.size());
    first_child_.assign(tree_.size() + 1, kNone), sibling_.resize(tree_.size());  // [parent + 1], [node]
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      int &first = first_child_[tree_.parents[*node] + 1];
      sibling_[*node] = first, first = *node;
    }
    waiting_.assign(1, first_child_[0]);
    while (!waiting_.empty()) {
      const int node = waiting_.back();
      waiting_.pop_back();
      if (node == kNone) continue;
      place_[node] = out.size();
      const int parent = tree_.parents[node];
      out.add(tree_.tokens[node], parent == kRoot ? kRoot : place_[parent], 0, tree_.chances[node]);
      waiting_.push_back(sibling_[node]), waiting_.push_back(first_child_[node + 1]);
    }
  }

  double reach(int node) const { return reach_[node]; }

 private:
  static constexpr double kMostCertain = 0.995;
  static constexpr int kNone = -1;

  // The chances of one parent's children do not add up to more than 1.
  void scale(const std::vector<int> &siblings) {
    double total = 0.0;
    for (const int node : siblings) total += tree_.chances[node];
    if (total > 1.0)
      for (const int node : siblings) tree_.chances[node] /= total;
  }

  Guesses tree_, more_;
  std::vector<int32_t> path_;
  std::vector<double> reach_;
  std::vector<int> owners_, heard_, ranked_, place_, places_[kGuessers];
  std::vector<int> first_child_, sibling_, waiting_;
  std::vector<std::vector<int>> children_;
  std::unordered_map<int64_t, int> nodes_;  // by parent and token
};

// The nodes of all sequences compete in one list, the likeliest first.
class TreeCut {
 public:
  void clear() { count_ = 0, ranked_.clear(), ranked_first_.clear(); }

  // One more sequence's guesses, of which `most` may be verified, down to a depth.
  void add(const HeadstartGuesser *guessers, Guesses (&guesses)[kGuessers], int most, int depth) {
    if (count_ == static_cast<int>(merged_.size())) merged_.emplace_back();
    Merged &merged = merged_[count_];
    merged.merge(guessers, guesses, 1);
    rank(merged, most, ranked_first_);
    merged.merge(guessers, guesses);
    merged.go_on(guessers, most, depth);
    rank(merged, most, ranked_);
    ++count_;
  }

  // As many nodes as make the most tokens per second (`RoundCosts.size`), of each sequence its own.
  void cut(const HeadstartCutRule &rule, HeadstartRound &round) {
    cut(rule, ranked_first_);
    cut(rule, ranked_);
    const int count = static_cast<int>(ranked_.size());
    round.row_seconds = count ? (rule.pass_seconds[count] - rule.pass_seconds[0]) / count : 0.0;
  }

  // What was chosen for a sequence, and what the first guesser promised alone and the other adds to that.
  void take(int sequence, Guesses &tree, HeadstartSpan &span) {
    chosen_.clear();
    for (const Ranked &each : ranked_first_)
      if (each.sequence == sequence) span.gains[0] += each.reach, ++span.verified[0];
    span.gains[1] = -span.gains[0], span.verified[1] = -span.verified[0];
    for (const Ranked &each : ranked_)
      if (each.sequence == sequence) {
        span.gains[1] += each.reach, ++span.verified[1];
        chosen_.push_back(each.node);
      }
    merged_[sequence].pick(chosen_, tree);
  }

 private:
  static constexpr double kLeastGain = 1.03;

  struct Ranked {
    double reach;
    int sequence, node;
  };

  void rank(Merged &merged, int most, std::vector<Ranked> &ranked) const {
    for (const int node : merged.ranked(most)) ranked.push_back({merged.reach(node), count_, node});
  }

  void cut(const HeadstartCutRule &rule, std::vector<Ranked> &ranked) const {
    std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked &a, const Ranked &b) { return a.reach > b.reach; });
    double tokens = count_, said = tokens * kLeastGain, taken = rule.pass_seconds[0] + rule.other_seconds;
    int count = 0;
    const int most = std::min(static_cast<int>(ranked.size()), rule.passes - 1);
    for (int node = 1; node <= most; ++node) {
      tokens += ranked[node - 1].reach;
      const double seconds = rule.pass_seconds[node] + rule.other_seconds;
      if (tokens * taken > said * seconds) said = tokens, taken = seconds, count = node;
    }
    ranked.resize(count);
  }

  std::vector<Merged> merged_;  // [sequence], kept for their memory
  int count_ = 0;
  std::vector<Ranked> ranked_, ranked_first_;
  std::vector<int> chosen_;
};
