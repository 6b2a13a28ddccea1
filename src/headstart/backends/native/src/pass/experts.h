// A mixture of experts: its packed weights, which experts a row goes through, and rows by expert.
#pragma once
#include <algorithm>
#include <vector>

#include "api.h"
#include "kernels/kernel.h"

enum class ExpertScore { softmax, sigmoid, sparsemixer, sqrtsoftplus };
enum class GroupScore { best, two_best };
enum ExpertLinearIndex { kExpertUp, kExpertDown, kExpertLinears };

struct ExpertsLayer {
  PackedLinear router;            // in floats, whatever the model computes in; the shared expert's gate is its last row
  std::vector<float> correction;  // [count], or empty
  std::vector<PackedLinear> linears[kExpertLinears];  // [expert]

  bool apart() const {
    const std::vector<PackedLinear> &ups = linears[kExpertUp];
    return std::any_of(ups.begin(), ups.end(), [](const PackedLinear &up) { return up.apart; });
  }
};

// Activated gates are at most `of_gates`, ups no further than `limit` from 0. What is no number stays.
static inline void cut_off(float of_gates, float limit, Lanes &gate, Lanes &up) {
  gate = min(splat(of_gates), gate);
  up = max(splat(-limit), min(splat(limit), up));
}

// A row goes through an expert, whose share of what the row gets is this.
struct ExpertCall {
  int32_t expert;
  float weight;
};

// Chooses the experts of one row after the other.
class ExpertChoice {
 public:
  explicit ExpertChoice(const HeadstartExperts &of)
      : of_(of), count_(of.count + of.idle), taken_(count_), good_(of.groups) {
    const int padded = round_up(count_, 16);
    scores_.resize(padded), ranked_.resize(padded);
  }

  // From the router's logits, calls[used] by number of the expert. A logit that is no number spoils its own row alone.
  // `given` [used]: which experts these are, or null.
  void choose(const float *logits, const std::vector<float> &correction, const float *given, ExpertCall *calls) {
    std::fill(taken_.begin(), taken_.end(), 0);
    if (of_.score == static_cast<int>(ExpertScore::sparsemixer))
      mix_sparsely(logits, calls);
    else
      take_best(logits, correction, given, calls);
    std::sort(calls, calls + of_.used, [](const ExpertCall &a, const ExpertCall &b) { return a.expert < b.expert; });
  }

 private:
  void take_best(const float *logits, const std::vector<float> &correction, const float *given, ExpertCall *calls) {
    score(logits);
    for (int e = 0; e < count_; ++e) ranked_[e] = correction.empty() ? scores_[e] : scores_[e] + correction[e];
    if (of_.groups > 1) leave_good_groups();
    float sum = 0.f;
    for (int i = 0; i < of_.used; ++i) {
      const int expert = given ? static_cast<int>(given[i]) : take(ranked_.data());
      calls[i] = {expert, scores_[expert]};
      sum += scores_[expert];
    }
    for (int i = 0; i < of_.used; ++i)
      calls[i].weight = (of_.normalised ? calls[i].weight / (sum + 1e-20f) : calls[i].weight) * of_.scale;
  }

  void score(const float *logits) {
    if (of_.score == static_cast<int>(ExpertScore::sigmoid)) {
      for (int e = 0; e < count_; e += 16) store(&scores_[e], sigmoid(load(logits + e)));
      return;
    }
    if (of_.score == static_cast<int>(ExpertScore::sqrtsoftplus)) {
      for (int e = 0; e < count_; ++e) scores_[e] = std::sqrt(softplus(logits[e]));
      return;
    }
    float largest = logits[0];
    for (int e = 1; e < count_; ++e) largest = logits[e] > largest ? logits[e] : largest;
    Lanes sum = splat(0.f);
    for (int e = 0; e < count_; e += 16) {
      const Lanes grown = select_range(exp(load(logits + e) - splat(largest)), 0, count_ - e, splat(0.f));
      store(&scores_[e], grown);
      sum = sum + grown;
    }
    const Lanes total = splat(reduce_add(sum));
    for (int e = 0; e < count_; e += 16) store(&scores_[e], load(&scores_[e]) / total);
  }

  static float softplus(float x) { return std::max(x, 0.f) + std::log1p(std::exp(-std::fabs(x))); }

  // The best that is left.
  int take(const float *ranked) {
    int best = -1;
    for (int e = 0; e < count_; ++e)
      if (!taken_[e] && (best < 0 || ranked[e] > ranked[best])) best = e;
    taken_[best] = 1;
    return best;
  }

  // Experts of other groups come last.
  void leave_good_groups() {
    const int size = count_ / of_.groups;
    for (int group = 0; group < of_.groups; ++group) {
      float best = -INFINITY, second = -INFINITY;
      for (int e = group * size; e < (group + 1) * size; ++e)
        if (ranked_[e] > best)
          second = best, best = ranked_[e];
        else
          second = std::max(second, ranked_[e]);
      good_[group] = of_.group_score == static_cast<int>(GroupScore::best) ? best : best + second;
    }
    for (int group = 0; group < of_.groups; ++group) {
      int better = 0;  // of equals the first
      for (int other = 0; other < of_.groups; ++other)
        better += good_[other] > good_[group] || (good_[other] == good_[group] && other < group);
      if (better >= of_.groups_used) std::fill_n(&ranked_[group * size], size, -INFINITY);
    }
  }

  // Each next expert is the best of those left, weighed among those that are near it (Liu et al. 2023;
  // layers/experts.py).
  void mix_sparsely(const float *logits, ExpertCall *calls) {
    constexpr float kNear = 2 * 0.01f;
    for (int i = 0; i < of_.used; ++i) {
      float total = 0.f;
      std::vector<char> before = taken_;
      const int expert = take(logits);
      const float best = logits[expert];
      for (int e = 0; e < count_; ++e) {
        const float factor = std::max(std::fabs(logits[e]), best);
        if (!before[e] && !((best - logits[e]) / factor > kNear)) total += std::exp(logits[e] - best);
      }
      calls[i] = {expert, 1.f / total};
    }
  }

  const HeadstartExperts &of_;
  const int count_;
  std::vector<char> taken_;
  std::vector<float> scores_, ranked_, good_;
};

// The calls of a panel by expert. Each has a place, and the places of an expert are neighbours, in order of their rows;
// those of idle ones stand behind all groups.
class ExpertGroups {
 public:
  struct Group {
    int expert, first, rows;  // places [first, first + rows)
  };

  // calls [row][used]
  void build(const ExpertCall *calls, int rows, const HeadstartExperts &of) {
    const int count = rows * of.used;
    begin_.assign(of.count + of.idle + 1, 0);
    for (int i = 0; i < count; ++i) ++begin_[calls[i].expert + 1];
    groups_.clear();
    for (int e = 0; e < of.count + of.idle; ++e) {
      if (begin_[e + 1] && e < of.count) groups_.push_back({e, begin_[e], begin_[e + 1]});
      begin_[e + 1] += begin_[e];
    }
    places_.resize(count), calls_.resize(count);
    for (int i = 0; i < count; ++i) {
      const int place = begin_[calls[i].expert]++;
      places_[i] = place, calls_[place] = i;
    }
  }

  const std::vector<Group> &all() const { return groups_; }
  int places() const { return static_cast<int>(calls_.size()); }
  // Call i: of row i / used.
  int place(int call) const { return places_[call]; }
  int call(int place) const { return calls_[place]; }

 private:
  std::vector<Group> groups_;
  std::vector<int32_t> begin_, places_, calls_;
};
