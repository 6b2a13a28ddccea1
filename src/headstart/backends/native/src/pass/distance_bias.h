// What the distance of a key adds to the scores of each head of a layer: as a table says (Raffel et al. 2020, section
// 2.1), or less and less with every token (ALiBi: Press et al. 2022).
#pragma once
#include <algorithm>
#include <vector>

#include "kernels/vectors/vector.h"

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
  // `slopes` [heads]: what a token of distance takes off, times `scale`; `coarse` as in models/config.py.
  DistanceBias(const float *slopes, int heads, float scale, bool coarse)
      : slopes_(slopes, slopes + heads), scale_(scale), coarse_(coarse) {
    for (float &slope : slopes_) slope = coarse ? to_float(to_bf16(slope)) : slope * scale;
  }

  bool present() const { return distances_ > 0 || !slopes_.empty(); }

  // Seen from `row`, of sixteen keys in order, the first of them at `key`; those behind the row get finite numbers.
  Lanes at(int head, int row, int key) const {
    if (!slopes_.empty()) return falling(slopes_[head], row, key);
    return load(&reversed_[head * row_size() + kLanes + std::max(distances_ - 1 - (row - key), -kLanes)]);
  }

 private:
  static constexpr int kLanes = 16;

  size_t row_size() const { return distances_ + 2 * kLanes; }

  Lanes falling(float slope, int row, int key) const {
    alignas(64) static constexpr float kSteps[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const Lanes keys = load(kSteps) + splat(static_cast<float>(key)), at = splat(static_cast<float>(row));
    if (!coarse_) return splat(slope) * (keys - at);
    const auto place = [&](Lanes position) { return rounded(splat(slope) * rounded(position)); };
    return (place(keys) - place(at)) * splat(scale_);
  }
  static Lanes rounded(Lanes x) {
    Bf16 halves[kLanes];
    store_bf16(halves, x);
    return load_bf16(halves);
  }

  int distances_ = 0;
  std::vector<float> reversed_;  // [head][row_size]: the last one, all from there down to distance 0, zeros
  std::vector<float> slopes_;    // [head]
  float scale_ = 1.f;
  bool coarse_ = false;
};
