// What distance adds to the scores of each head of a layer (Raffel et al. 2020, section 2.1).
#pragma once
#include <algorithm>
#include <vector>

#include "../kernels/vector.h"

class DistanceBias {
 public:
  DistanceBias() = default;
  // `table` [heads][distances]: distance 0, 1, ...; all further ones are as the last.
  DistanceBias(const float *table, int heads, int distances)
      : distances_(distances), reversed_(static_cast<size_t>(heads) * row_size()) {
    for (int head = 0; head < heads; ++head, table += distances) {
      float *const row = &reversed_[head * row_size()];
      std::fill_n(row, kLanes, table[distances - 1]);
      std::reverse_copy(table, table + distances, row + kLanes);
    }
  }

  bool present() const { return distances_ > 0; }

  // For sixteen keys in order, the first of them `distance` before the row; those behind the row get finite numbers.
  Lanes at(int head, int distance) const {
    return load(&reversed_[head * row_size() + kLanes + std::max(distances_ - 1 - distance, -kLanes)]);
  }

 private:
  static constexpr int kLanes = 16;

  size_t row_size() const { return distances_ + 2 * kLanes; }

  int distances_ = 0;
  std::vector<float> reversed_;  // [head][row_size]: the last one, all from there down to distance 0, zeros
};
