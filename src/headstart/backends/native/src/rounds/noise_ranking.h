// What the target's own noise tells about the tokens to come (drafting/head_trees/noise_ranking.py), in float.
//
// Guesses alone depend on it: what is said is decided in sampling.h.
#pragma once
#include <cmath>
#include <cstring>
#include <vector>

#include "rounds/sampling.h"

class NoiseRanking {
 public:
  // Tokens so many temperatures below a row's best have no noise (`_REACH` of noise_ranking.py).
  static constexpr float kNoiseReach = 12.f;

  // The next tokens are others than those before.
  void forget() { ids_.clear(); }

  // Puts the noise of a position on a draft's logits: `rows` of them, `stride` floats apart. Their first columns stand
  // for the tokens `ids`, the others for those of `text_tokens`, which may be null.
  void put(float *logits, int rows, int stride, const int32_t *ids, int vocab, const HeadstartTextTokens *text_tokens,
           const HeadstartSampling &sampling, int position) {
    HeadstartNoise noise = sampling.noise;
    noise.counter[0] = static_cast<uint32_t>(position);
    if (ids_.empty())
      for (int i = 0; i < vocab; ++i) ids_.push_back(std::max(ids[i], 0));
    ids_.resize(vocab);
    if (text_tokens) ids_.insert(ids_.end(), text_tokens->tokens, text_tokens->tokens + text_tokens->count);
    const int columns = static_cast<int>(ids_.size());
    const float temperature = static_cast<float>(sampling.temperature);
    // Of most tokens the noise is not made, for no noise is likely to save them.
    floors_.resize(rows), reach_.resize(rows), above_.assign(columns, -1.f), shift_.resize(columns);
    float *const above = above_.data(), *const shift = shift_.data();
    for (int row = 0; row < rows; ++row) {
      const float *const x = logits + static_cast<size_t>(row) * stride;
      const float peak = peak_of(x, columns);
      floors_[row] = INFINITY;
      if (!std::isfinite(peak)) continue;  // no guess
      floors_[row] = static_cast<float>(floors_of(x, columns, peak, sampling).loose);
      const float floor = reach_[row] = std::max(floors_[row], peak - kNoiseReach * temperature);
#pragma omp simd
      for (int i = 0; i < columns; ++i) above[i] = std::max(above[i], x[i] - floor);
    }
    chosen_.clear(), chosen_ids_.clear();
    for (int i = 0; i < columns; ++i)
      if (above[i] >= 0.f) chosen_.push_back(i), chosen_ids_.push_back(ids_[i]);
    const int count = static_cast<int>(chosen_.size());
    words_.resize(count), chosen_shift_.resize(count);
    chosen_words(words_.data(), chosen_ids_.data(), count, noise);
    const uint32_t *const words = words_.data();
    float *const chosen_shift = chosen_shift_.data();
#pragma omp simd
    for (int i = 0; i < count; ++i) chosen_shift[i] = temperature * log_of(exponential(words[i]));
    for (int i = 0; i < count; ++i) shift[chosen_[i]] = chosen_shift[i];
    for (int row = 0; row < rows; ++row) {
      float *const x = logits + static_cast<size_t>(row) * stride;
      const float floor = floors_[row], reach = reach_[row];
      if (floor == INFINITY) continue;
#pragma omp simd
      for (int i = 0; i < columns; ++i) x[i] = x[i] < floor ? -INFINITY : x[i] < reach ? x[i] : x[i] - shift[i];
    }
  }

 private:
  // -log u of a word; near 1, where u has few bits, from what is missing.
  static float exponential(uint32_t word) {
    constexpr float kScale = 1.f / 4294967296.f;
    const float missing = (static_cast<float>(~word) + 0.5f) * kScale;
    const float series = missing * (1.f + missing * (0.5f + missing * (1.f / 3 + missing * (0.25f + missing * 0.2f))));
    const float direct = -log_of((static_cast<float>(word) + 0.5f) * kScale);
    return missing < 0.03125f ? series : direct;
  }

  // Of a normal number, to some 1e-7: the polynomial of Cephes' logf.
  static float log_of(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, sizeof x);
    const int32_t from = bits - 0x3f3504f3;  // the square root of one half
    const int32_t exponent = from >> 23;
    const int32_t whole = (from & 0x7fffff) + 0x3f3504f3;
    float mantissa;
    std::memcpy(&mantissa, &whole, sizeof mantissa);
    const float m = mantissa - 1.f, square = m * m;
    float y = 7.0376836292e-2f;
    y = y * m - 1.1514610310e-1f, y = y * m + 1.1676998740e-1f, y = y * m - 1.2420140846e-1f;
    y = y * m + 1.4249322787e-1f, y = y * m - 1.6668057665e-1f, y = y * m + 2.0000714765e-1f;
    y = y * m - 2.4999993993e-1f, y = y * m + 3.3333331174e-1f;
    return m + (y * m - 0.5f) * square + static_cast<float>(exponent) * 0.69314718056f;
  }

  std::vector<int64_t> ids_;          // of a head's vocabulary, which never changes, and of the last text tokens
  std::vector<float> floors_;         // [row] of the logits that may be said; infinite: none is guessed
  std::vector<float> reach_;          // [row] of those that have noise
  std::vector<float> above_, shift_;  // [column] how far within a row's reach at most; what noise takes off
  std::vector<int> chosen_;           // columns with noise in a row
  std::vector<int64_t> chosen_ids_;   // [chosen] their tokens, noise, and what that takes off
  std::vector<uint32_t> words_;
  std::vector<float> chosen_shift_;
};
