// Trees of what followed the longest repeated suffixes of a growing text: what suffix_automaton.py
// of drafting/methods/suffix/ holds and drafter.py proposes, state for state and tree for tree.
#pragma once
#include <cmath>
#include <queue>

#include "api.h"
#include "rounds/guesses.h"

// Every substring of the text, with counts (Blumer et al. 1985); each state stands for those that end at the same
// places.
class SuffixText {
 public:
  // A grade says between which bounds the length of what matched lies, and the relative frequency of what follows.
  SuffixText(int max_length, Bounds matches, Bounds ratios)
      : max_length_(max_length),
        matches_(matches.first, matches.first + matches.count),
        ratios_(ratios.first, ratios.first + ratios.count),
        states_(1) {}

  void start_text() {
    last_ = tip_ = kStart, tip_length_ = 0;
    for (Reading &reading : consulted_) reading.state = kStart, reading.length = 0;
  }

  // Guesses come from another text, too, which several may share: it outlives this one, and grows between its calls.
  void consult(const SuffixText &other) { consulted_.push_back({&other, kStart, 0}); }

  void append(int32_t token) {
    for (Reading &reading : consulted_) reading.follow(token, max_length_);
    const int before = last_;
    if (const int known = next(before, token); known >= 0) {
      // Only a second text meets this: its prefix occurs already.
      last_ = states_[known].length == states_[before].length + 1 ? known : split(before, token, known);
    } else {
      const int state = last_ = new_state(states_[before].length + 1);
      int above = before, found = -1;
      while ((found = next(above, token)) < 0) {
        set_next(above, token, state);
        if (above == kStart) break;
        above = states_[above].link;
      }
      if (found >= 0)
        states_[state].link = states_[found].length == states_[above].length + 1 ? found : split(above, token, found);
    }
    tip_ = next(tip_, token);
    if (++tip_length_ > max_length_) {
      tip_length_ = max_length_;
      if (states_[states_[tip_].link].length >= tip_length_) tip_ = states_[tip_].link;
    }
    ++size_;
    for (int state = tip_; state != kStart; state = states_[state].link)
      ++states_[state].count, states_[state].latest = size_;
  }

  // The tree with the largest sum of probabilities below one of the last strings of the text and a path behind it.
  void guess(const HeadstartSuffix &options, const int32_t *path, int steps, int nodes, int depth, Guesses &out) {
    out.clear();
    depth = std::min({depth, nodes, options.nodes, options.max_depth - 1});
    double best = 0.0;
    const auto take = [&](Reading reading) {
      reading.settle();
      for (int i = 0; i < steps; ++i) reading.follow(path[i], max_length_);
      best = better(*reading.text, reading.state, reading.length, options, nodes, depth, best, out);
    };
    take({this, tip_, tip_length_});
    for (const Reading &reading : consulted_) take(reading);
  }

 private:
  static constexpr int kStart = 0;  // the state of the empty string

  struct Step {
    int32_t token;
    int state;
  };
  struct State {
    int link = kStart, length = 0, count = 0, latest = 0;
    std::vector<Step> following;  // by token
  };
  // A node that may come next.
  struct Candidate {
    double probability, ratio;
    int pushed, token, state, parent, level;

    bool operator<(const Candidate &other) const {  // the top of a heap is its greatest
      return probability != other.probability ? probability < other.probability : pushed > other.pushed;
    }
  };

  // The longest string at this text's end that another text holds.
  struct Reading {
    const SuffixText *text;
    int state, length;

    // That text may have grown, and the string may have got a state of its own.
    void settle() {
      const std::vector<State> &states = text->states_;
      while (state != kStart && states[states[state].link].length >= length) state = states[state].link;
    }
    void follow(int32_t token, int max_length) {
      settle();
      int next = -1;
      while ((next = text->next(state, token)) < 0 && state != kStart)
        state = text->states_[state].link, length = text->states_[state].length;
      state = next < 0 ? kStart : next, length = next < 0 ? 0 : std::min(length + 1, max_length);
    }
  };

  // A tree of more than `best` below one of the suffixes of a string of some text, into `out`; its sum, or `best`.
  double better(const SuffixText &text, int state, int length, const HeadstartSuffix &options, int nodes, int depth,
                double best, Guesses &out) {
    const std::vector<State> &states = text.states_;
    int matched = std::min(length, options.max_depth - depth);
    for (; state != kStart; state = states[state].link) {
      const int shorter = states[states[state].link].length;
      if (shorter >= matched) continue;
      const double wished = matched * options.factor + options.offset;
      const int allowed = std::min({nodes, options.nodes, static_cast<int>(std::min(wished, 1e9))});
      // No tree scores more than its nodes, and shorter suffixes are allowed fewer of them.
      if (allowed <= best) return best;
      if (!states[state].following.empty()) {
        const double score = grow(states, state, matched, allowed, depth, options.min_probability);
        if (score > best) best = score, std::swap(out, grown_);
      }
      matched = shorter;
    }
    return best;
  }

  int new_state(int length) {
    states_.emplace_back();
    states_.back().length = length;
    return static_cast<int>(states_.size()) - 1;
  }

  std::vector<Step>::const_iterator place(int state, int32_t token) const {
    const std::vector<Step> &steps = states_[state].following;
    return std::lower_bound(steps.begin(), steps.end(), token,
                            [](const Step &step, int32_t wanted) { return step.token < wanted; });
  }
  int next(int state, int32_t token) const {
    const auto at = place(state, token);
    return at != states_[state].following.end() && at->token == token ? at->state : -1;
  }
  void set_next(int state, int32_t token, int to) {
    std::vector<Step> &steps = states_[state].following;
    const auto at = steps.begin() + (place(state, token) - steps.cbegin());
    if (at != steps.end() && at->token == token)
      at->state = to;
    else
      steps.insert(at, {token, to});
  }

  // Gives the substrings of `state` that are no longer than `before` and `token` a state of their own.
  int split(int before, int32_t token, int state) {
    const int clone = static_cast<int>(states_.size());
    states_.push_back(State(states_[state]));
    states_[clone].length = states_[before].length + 1;
    states_[state].link = clone;
    for (int above = before; next(above, token) == state; above = states_[above].link) {
      set_next(above, token, clone);
      if (above == kStart) break;
    }
    return clone;
  }

  // The likeliest continuations, best first, among equals the one seen last, into `grown_`; the sum of their
  // probabilities.
  double grow(const std::vector<State> &states, int state, int matched, int nodes, int depth, double min_probability) {
    grown_.clear(), candidates_.clear();
    int pushed = 0, parent = kRoot, level = 0;
    double score = 0.0, probability = 1.0;
    while (true) {
      if (level < depth) push_children(states, state, probability, parent, level, min_probability, pushed);
      if (candidates_.empty() || grown_.size() == nodes) return score;
      std::pop_heap(candidates_.begin(), candidates_.end());
      const Candidate next = candidates_.back();
      candidates_.pop_back();
      probability = next.probability, parent = grown_.size(), level = next.level, state = next.state;
      score += probability;
      const Bounds matches{matches_.data(), static_cast<int>(matches_.size())};
      const Bounds ratios{ratios_.data(), static_cast<int>(ratios_.size())};
      const int grade = matches.up_to(matched + level - 1) * (ratios.count + 1) + ratios.up_to(next.ratio);
      grown_.add(next.token, next.parent, grade);
    }
  }

  void push_children(const std::vector<State> &states, int state, double probability, int parent, int level,
                     double min_probability, int &pushed) {
    const std::vector<Step> &following = states[state].following;
    ranked_.clear();
    int total = 0;
    for (const Step &step : following) total += states[step.state].count;
    const bool alone = following.size() < 2;
    const double floor = min_probability * total / probability;
    for (const Step &step : following)
      if (alone || states[step.state].count >= floor) ranked_.push_back(step);
    std::sort(ranked_.begin(), ranked_.end(), [&](const Step &a, const Step &b) {
      const State &one = states[a.state], &other = states[b.state];
      if (one.count != other.count) return one.count > other.count;
      return one.latest != other.latest ? one.latest > other.latest : a.token < b.token;
    });
    for (const Step &step : ranked_) {
      const double ratio = alone ? 1.0 : static_cast<double>(states[step.state].count) / total;
      candidates_.push_back({probability * ratio, ratio, pushed++, step.token, step.state, parent, level + 1});
      std::push_heap(candidates_.begin(), candidates_.end());
    }
  }

  const int max_length_;
  const std::vector<double> matches_, ratios_;  // bounds of the grades
  std::vector<State> states_;
  std::vector<Reading> consulted_;
  int last_ = kStart, tip_ = kStart, tip_length_ = 0, size_ = 0;
  Guesses grown_;
  std::vector<Candidate> candidates_;
  std::vector<Step> ranked_;
};
