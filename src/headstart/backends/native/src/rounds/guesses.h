// What drafters guess for one sequence: point masses, a parent before its children.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

constexpr int kRoot = -1;  // the parent of what comes first
constexpr int kGuessers = 2;
// Added to grades (drafting/planning/guess_rates.py) where the other drafter guesses the same token after the same
// ones, or others only.
constexpr int kAgreed = 64, kContradicted = 128;

constexpr double kUnsaid = -1.0;  // the chance of a guess whose drafter gives none

struct Guesses {
  std::vector<int32_t> tokens, parents, grades;  // [node]
  std::vector<double> chances;                   // [node] to be accepted, given its parent

  int size() const { return static_cast<int>(tokens.size()); }
  void clear() { tokens.clear(), parents.clear(), grades.clear(), chances.clear(); }
  void add(int32_t token, int32_t parent, int32_t grade, double chance = kUnsaid) {
    tokens.push_back(token), parents.push_back(parent), grades.push_back(grade), chances.push_back(chance);
  }
  // The child of a node that bears a token; -1: none does.
  int child(int32_t node, int32_t token) const {
    for (int i = node + 1; i < size(); ++i)
      if (parents[i] == node && tokens[i] == token) return i;
    return -1;
  }
};

// Classes of confidence: ascending bounds, as Python's `bisect` counts them.
struct Bounds {
  const double *first;
  int count;

  int below(double x) const { return static_cast<int>(std::lower_bound(first, first + count, x) - first); }
  int up_to(double x) const { return static_cast<int>(std::upper_bound(first, first + count, x) - first); }
};
