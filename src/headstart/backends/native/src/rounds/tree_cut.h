// Guesses of several drafters for several sequences, of which as many are verified as pay: what the Python modules
// drafting/planning/merged.py and round_costs.py do, node for node.
#pragma once
#include <algorithm>
#include <unordered_map>

#include "api.h"
#include "rounds/guesses.h"
#include "rounds/suffix_text.h"

// The guesses of all drafters for one sequence in one tree, each with its chance to be reached.
class Merged {
 public:
  // The guesses of the first of them. Equal paths are one node, with the mean of the drafters' chances. What they say
  // of each other goes into the grades.
  void merge(const HeadstartGuesser *guessers, Guesses (&all)[kGuessers], double most_certain, int first = kGuessers) {
    most_certain_ = most_certain;
    tree_.clear(), owners_.clear(), nodes_.clear(), reach_.clear();
    heard_.assign(1, 0);  // [parent + 1]
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
    weigh(0);
  }

  // Where a text to copy from has not guessed the likeliest path by itself, what it holds behind that.
  void go_on(const HeadstartGuesser *guessers, int most, int depth) {
    path_.clear();
    int leaf = kRoot;
    for (int next; (next = likeliest_after(leaf)) != kRoot; leaf = next) path_.push_back(tree_.tokens[next]);
    const int steps = static_cast<int>(path_.size());
    for (int i = 0; i < kGuessers && steps && steps < depth; ++i) {
      const HeadstartSuffix *suffix = guessers[i].suffix;
      if (!suffix || (owners_[leaf] >> i & 1)) continue;
      static_cast<SuffixText *>(suffix->text)->guess(*suffix, path_.data(), steps, most, depth - steps, more_);
      const int first = tree_.size();
      for (int k = 0; k < more_.size(); ++k)
        tree_.add(more_.tokens[k], more_.parents[k] == kRoot ? leaf : first + more_.parents[k], 0,
                  guessers[i].rates[more_.grades[k]]);
      weigh(first);
      return;
    }
  }

  // These nodes, the likeliest first, which hold all parents of theirs, without grades. Depth first: rows of the
  // likeliest path stand where they stay once they are accepted.
  void pick(const std::vector<int> &nodes, Guesses &out, int parent = kRoot, int place = kRoot) const {
    for (const int node : nodes)
      if (tree_.parents[node] == parent) {
        const int own = out.size();
        out.add(tree_.tokens[node], place, 0, tree_.chances[node]);
        pick(nodes, out, node, own);
      }
  }

  int size() const { return tree_.size(); }
  double reach(int node) const { return reach_[node]; }

 private:
  // From the node `first` on: chances of one parent's children that add up to no more than 1, and the nodes' reach.
  void weigh(int first) {
    totals_.assign(tree_.size() + 1, 0.0);  // [parent + 1]
    for (int node = first; node < tree_.size(); ++node) totals_[tree_.parents[node] + 1] += tree_.chances[node];
    for (int node = first; node < tree_.size(); ++node) {
      const int parent = tree_.parents[node];
      const double chance = tree_.chances[node] / std::max(1.0, totals_[parent + 1]);
      tree_.chances[node] = std::min(chance, most_certain_);
      reach_.push_back(parent == kRoot ? tree_.chances[node] : tree_.chances[node] * reach_[parent]);
    }
  }

  int likeliest_after(int parent) const {
    int best = kRoot;
    for (int node = parent + 1; node < tree_.size(); ++node)
      if (tree_.parents[node] == parent && (best == kRoot || reach_[node] > reach_[best])) best = node;
    return best;
  }

  Guesses tree_, more_;
  double most_certain_ = 1.0;
  std::vector<int32_t> path_;
  std::vector<double> reach_, totals_;
  std::vector<int> owners_, heard_, places_[kGuessers];
  std::unordered_map<int64_t, int> nodes_;  // by parent and token
};

// The nodes of all sequences compete in one list, the likeliest first.
class TreeCut {
 public:
  void begin(const HeadstartCutRule &rule) {
    rule_ = &rule;
    most_.clear(), ranked_.clear(), ranked_first_.clear();
  }

  // One more sequence's guesses, of which `most` may be verified, down to a depth.
  void add(const HeadstartGuesser *guessers, Guesses (&guesses)[kGuessers], int most, int depth) {
    if (most_.size() == merged_.size()) merged_.emplace_back();
    Merged &merged = merged_[most_.size()];
    merged.merge(guessers, guesses, rule_->most_certain, 1);
    list(merged, ranked_first_);
    merged.merge(guessers, guesses, rule_->most_certain);
    merged.go_on(guessers, most, depth);
    list(merged, ranked_);
    most_.push_back(most);
  }

  // As many nodes as make the most tokens per second (`RoundCosts.size`), of each sequence its own.
  void cut(HeadstartRound &round) {
    cut(ranked_first_);
    cut(ranked_);
    const int count = static_cast<int>(ranked_.size());
    round.row_seconds = count ? (rule_->pass_seconds[count] - rule_->pass_seconds[0]) / count : 0.0;
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
    tree.clear();
    merged_[sequence].pick(chosen_, tree);
  }

 private:
  struct Ranked {
    double reach;
    int sequence, node;
  };

  void list(const Merged &merged, std::vector<Ranked> &all) const {
    for (int node = 0; node < merged.size(); ++node)
      all.push_back({merged.reach(node), static_cast<int>(most_.size()), node});
  }

  void cut(std::vector<Ranked> &ranked) const {
    // Reach falls along every path, so a parent stays before its child.
    std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked &a, const Ranked &b) { return a.reach > b.reach; });
    std::vector<int> left = most_;
    const auto beyond = [&](const Ranked &each) { return --left[each.sequence] < 0; };
    ranked.erase(std::remove_if(ranked.begin(), ranked.end(), beyond), ranked.end());
    double tokens = static_cast<double>(most_.size()), said = tokens * rule_->least_gain,
           taken = rule_->pass_seconds[0] + rule_->other_seconds;
    int count = 0;
    const int most = std::min(static_cast<int>(ranked.size()), rule_->passes - 1);
    for (int node = 1; node <= most; ++node) {
      tokens += ranked[node - 1].reach;
      const double seconds = rule_->pass_seconds[node] + rule_->other_seconds;
      if (tokens * taken > said * seconds) said = tokens, taken = seconds, count = node;
    }
    ranked.resize(count);
  }

  const HeadstartCutRule *rule_ = nullptr;
  std::vector<Merged> merged_;  // [sequence], kept for their memory
  std::vector<Ranked> ranked_, ranked_first_;
  std::vector<int> most_, chosen_;  // [sequence] nodes at most
};
