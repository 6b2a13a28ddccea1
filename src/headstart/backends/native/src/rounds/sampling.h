// What drawing a token from a row of logits costs most: the noise words, and the search for who can win.
//
// Words are integers and exact. Everything else here is approximate and errs on one side only: Python decides with the
// arithmetic of its own path among what is left, so that a draw is the same with and without this library.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "api.h"
#include "kernels/vectors/vector_math.h"

constexpr int kCounters = 16;
constexpr int kBlockTokens = 4 * kCounters;
constexpr double kWord = 4294967296.0;

// Philox4x32-10 (Salmon et al. 2011) of kCounters counters side by side: `first` holds their first words.
static inline void philox(Words words[4], Words first, const HeadstartNoise &noise) {
  Words c0 = first, c1 = splat_words(noise.counter[0]), c2 = splat_words(noise.counter[1]);
  Words c3 = splat_words(noise.counter[2]);
  uint32_t key0 = noise.key[0], key1 = noise.key[1];
  for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9u, key1 += 0xBB67AE85u) {
    Words high0, low0, high1, low1;
    multiply(c0, splat_words(0xD2511F53u), high0, low0);
    multiply(c2, splat_words(0xCD9E8D57u), high1, low1);
    c0 = high1 ^ c1 ^ splat_words(key0), c1 = low1;
    c2 = high0 ^ c3 ^ splat_words(key1), c3 = low0;
  }
  words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

// The words of tokens [first, first + kBlockTokens); `first` is a multiple of four.
static inline void noise_words(uint32_t *out, int64_t first, const HeadstartNoise &noise) {
  alignas(64) uint32_t counters[kCounters], lanes[4][kCounters];
  for (int i = 0; i < kCounters; ++i) counters[i] = static_cast<uint32_t>(first / 4) + i;
  Words words[4];
  philox(words, load_words(counters), noise);
  for (int j = 0; j < 4; ++j) store_words(lanes[j], words[j]);
  interleave(out, lanes);
}

static inline void row_words(uint32_t *out, int64_t count, const HeadstartNoise &noise) {
  int64_t first = 0;
  for (; first + kBlockTokens <= count; first += kBlockTokens) noise_words(out + first, first, noise);
  if (first == count) return;
  uint32_t rest[kBlockTokens];
  noise_words(rest, first, noise);
  std::memcpy(out + first, rest, (count - first) * sizeof(uint32_t));
}

static inline void chosen_words(uint32_t *out, const int64_t *ids, int64_t count, const HeadstartNoise &noise) {
  for (int64_t first = 0; first < count; first += kCounters) {
    const int some = static_cast<int>(std::min<int64_t>(kCounters, count - first));
    alignas(64) uint32_t counters[kCounters] = {}, lanes[4][kCounters];
    for (int i = 0; i < some; ++i) counters[i] = static_cast<uint32_t>(ids[first + i] >> 2);
    Words words[4];
    philox(words, load_words(counters), noise);
    for (int j = 0; j < 4; ++j) store_words(lanes[j], words[j]);
    for (int i = 0; i < some; ++i) out[first + i] = lanes[ids[first + i] & 3][i];
  }
}

// Up to sixteen values; `other` behind the last one.
static inline Lanes load_some(const float *p, int64_t count, Lanes other) {
  if (count >= 16) return load(p);
  alignas(64) float values[16] = {};
  std::memcpy(values, p, count * sizeof(float));
  return select_range(load(values), 0, static_cast<int>(count), other);
}

// The highest logit; a NaN where there is one.
static inline float peak_of(const float *row, int64_t count) {
  const Lanes nothing = splat(-std::numeric_limits<float>::infinity());
  Lanes highest = nothing;
  uint32_t numbers = 0xffff;
  for (int64_t at = 0; at < count; at += 16) {
    const Lanes values = load_some(row + at, count - at, nothing);
    highest = max(highest, values);
    numbers &= at_most(values, values);
  }
  return numbers == 0xffff ? reduce_max(highest) : std::numeric_limits<float>::quiet_NaN();
}

// The rank-th highest logit, from 1; -infinity where there are fewer above it.
static inline float ranked(const float *row, int64_t count, int64_t rank) {
  const Lanes nothing = splat(-std::numeric_limits<float>::infinity());
  std::vector<float> best;
  const size_t wanted = static_cast<size_t>(rank), room = 2 * wanted + 64;
  best.reserve(room + 16);
  float least = -std::numeric_limits<float>::infinity();  // of the highest so far: what is not above it changes nothing
  const auto cut = [&] {
    std::nth_element(best.begin(), best.begin() + (wanted - 1), best.end(), std::greater<float>());
    best.resize(wanted);
    least = best[wanted - 1];
  };
  for (int64_t at = 0; at < count; at += 16) {
    const Lanes values = load_some(row + at, count - at, nothing);
    uint32_t above = at_most(splat(least), values) & ~at_most(values, splat(least));  // no NaN
    for (; above; above &= above - 1) {
      best.push_back(row[at + __builtin_ctz(above)]);
    }
    if (best.size() >= room) cut();
  }
  if (best.size() < wanted) return -std::numeric_limits<float>::infinity();
  cut();
  return least;
}

// The sum of exp((z - peak) / temperature) over the logits from `floor` on, to some 1e-6 of itself.
static inline double mass_of(const float *row, int64_t count, float peak, double temperature,
                             float floor = -std::numeric_limits<float>::infinity()) {
  const Lanes nothing = splat(-std::numeric_limits<float>::infinity()), least = splat(floor);
  const Lanes highest = splat(peak), cold = splat(static_cast<float>(1 / temperature));
  double mass = 0;
  for (int64_t at = 0; at < count; at += 16) {
    const Lanes values = load_some(row + at, count - at, nothing);
    const Lanes weights = exp((values - highest) * cold);
    const uint32_t kept = at_most(least, values);
    if (kept == 0xffff) {
      mass += reduce_add(weights);
    } else if (kept) {
      alignas(64) float each[16];
      store(each, weights);
      for (int i = 0; i < 16; ++i) mass += kept >> i & 1 ? each[i] : 0.f;
    }
  }
  return mass;
}

// Logits from `from` on, the highest first.
static inline void highest_from(const float *row, int64_t count, float from, std::vector<float> &out) {
  out.clear();
  const Lanes nothing = splat(-std::numeric_limits<float>::infinity()), least = splat(from);
  for (int64_t at = 0; at < count; at += 16) {
    uint32_t above = at_most(least, load_some(row + at, count - at, nothing));
    if (count - at < 16) above &= (1u << (count - at)) - 1;
    for (; above; above &= above - 1) out.push_back(row[at + __builtin_ctz(above)]);
  }
  std::sort(out.begin(), out.end(), std::greater<float>());
}

// The least float that is not below a floor.
static inline float float_from(double floor) {
  const float near = static_cast<float>(floor);
  return near < floor ? std::nextafter(near, std::numeric_limits<float>::infinity()) : near;
}

// Which logits a law keeps: from `sure` on it does, below `loose` it does not.
struct Floors {
  double sure, loose;
};

// Of the tokens from `floor` on, top-p keeps the fewest that hold a share of their mass. Sums are approximate here, so
// that the last of them are not known for sure; nor are all, where they are very many. `peak` is finite.
static inline Floors nucleus_of(const float *row, int64_t count, float peak, double floor, double temperature,
                                double share) {
  constexpr double kMassError = 2e-5;  // twice that of `mass_of`
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  std::vector<float> head;
  const auto weight = [&](size_t i) { return std::exp((static_cast<double>(head[i]) - peak) / temperature); };
  Floors floors{-kNothing, floor};
  double sum = 0;
  for (const int64_t size : {64, 512, 4096, 32768}) {
    const double least = size < count ? ranked(row, count, size) : kNothing;
    const bool whole = least <= floor;
    highest_from(row, count, float_from(std::max(floor, least)), head);
    if (whole) {
      sum = 0;
      for (size_t i = 0; i < head.size(); ++i) sum += weight(i);
    } else if (sum == 0) {
      sum = mass_of(row, count, peak, temperature, float_from(floor));
    }
    const double few = share * sum * (1 - kMassError), many = share * sum * (1 + kMassError);
    size_t last = 0;
    double held = weight(0);
    while (held < few && last + 1 < head.size()) held += weight(++last);
    // Of equal weights at the end some may be left out.
    const auto ends_among_equals = [&](size_t at) { return last + 1 < head.size() && weight(at) == weight(last + 1); };
    size_t sure = last;
    while (sure > 0 && ends_among_equals(sure)) --sure;
    floors.sure = ends_among_equals(sure) ? -kNothing : head[sure];
    while ((held < many || ends_among_equals(last)) && last + 1 < head.size()) held += weight(++last);
    if (whole || last + 1 < head.size()) {
      floors.loose = head[last];
      return floors;
    }
  }
  return floors;
}

// What min-p, top-k and top-p keep.
static inline Floors floors_of(const float *row, int64_t count, float peak, const HeadstartSampling &sampling) {
  double floor = peak - sampling.depth;
  if (sampling.top_k > 0 && sampling.top_k < count) floor = std::max<double>(floor, ranked(row, count, sampling.top_k));
  if (sampling.top_p >= 1) return {floor, floor};
  return nucleus_of(row, count, peak, floor, sampling.temperature, sampling.top_p);
}

// Tokens of one row that may be the argmin of E / p, E the row's exponential noise and p proportional to
// exp(z / temperature) where z >= floor.
class Contest {
 public:
  Contest(const float *row, int64_t count, double temperature, double floor, const HeadstartNoise &noise)
      : row_(row), count_(count), temperature_(temperature), floor_(floor), noise_(noise) {}

  // How many tokens there are, in ascending order in `ids`; 0 where the row has no finite peak, or too many contend.
  int run(int64_t *ids, int capacity) {
    const float peak = peak_of(row_, count_);
    if (!std::isfinite(peak)) return 0;
    peak_ = peak;
    const int64_t place = std::find(row_, row_ + count_, peak) - row_;
    best_ = std::numeric_limits<double>::infinity();
    uint32_t word;
    chosen_words(&word, &place, 1, noise_);
    lower_to(ratio(peak, word));
    for (int64_t first = 0; first < count_; first += kBlockTokens) {
      const int some = static_cast<int>(std::min<int64_t>(kBlockTokens, count_ - first));
      if (some == kBlockTokens) {
        examine(row_ + first, first);
      } else {
        float rest[kBlockTokens];
        std::fill(rest, rest + kBlockTokens, -std::numeric_limits<float>::infinity());
        std::memcpy(rest, row_ + first, some * sizeof(float));
        examine(rest, first);
      }
      if (overflow_) return 0;
    }
    int kept = 0;
    for (int i = 0; i < found_; ++i) {
      if (ratios_[i] > best_ * kMargin) continue;
      if (kept == capacity) return 0;
      ids[kept++] = found_ids_[i];
    }
    return kept;
  }

 private:
  static constexpr int kMost = 4096;
  static constexpr double kMargin = 1 + 1e-9;       // what logarithm and exponential of two libraries may differ by
  static constexpr float kLooseMargin = 1 + 1e-3f;  // what float arithmetic may be off by

  double ratio(float logit, uint32_t word) const {
    const double weight = std::exp((static_cast<double>(logit) - peak_) / temperature_);
    return weight > 0 ? -std::log((word + 0.5) / kWord) / weight : std::numeric_limits<double>::infinity();
  }

  void lower_to(double ratio) {
    if (ratio >= best_) return;
    best_ = ratio;
    log_scale_ = static_cast<float>(std::log(best_ * kWord));
    // No word gives less noise than 2^-33: what even that would not save is not looked at.
    const double lowest = peak_ + temperature_ * (std::log(0.5 / kWord / best_) - 1e-3);
    const double cut = std::max(floor_, lowest - 1e-6 * std::abs(lowest));
    cut_ = static_cast<float>(std::max(cut, -double{std::numeric_limits<float>::max()}));
  }

  // With u = (word + 1/2) / 2^32, E = -log u >= 1 - u: whoever has 1 - u > best p loses.
  void examine(const float *logits, int64_t first) {
    const Lanes high = max(max(load(logits), load(logits + 16)), max(load(logits + 32), load(logits + 48)));
    if (reduce_max(high) < cut_) return;
    alignas(64) uint32_t words[kBlockTokens];
    noise_words(words, first, noise_);
    const Lanes peak = splat(static_cast<float>(peak_)), cold = splat(static_cast<float>(1 / temperature_));
    uint64_t may = 0;
    for (int i = 0; i < kBlockTokens; i += 16) {
      const Lanes bound = exp(fma(load(logits + i) - peak, cold, splat(log_scale_))) * splat(kLooseMargin);
      const Lanes missing = half(load_words(words + i) ^ splat_words(~0u)) * splat(2.f);  // 2^32 (1 - u), or less
      may |= uint64_t{at_most(missing, bound)} << i;
    }
    for (; may; may &= may - 1) {
      const int i = __builtin_ctzll(may);
      if (logits[i] < floor_ || first + i >= count_) continue;
      const double it = ratio(logits[i], words[i]);
      if (!(it <= best_ * kMargin)) continue;
      if (found_ == kMost) {
        overflow_ = true;
        return;
      }
      found_ids_[found_] = first + i, ratios_[found_++] = it;
      lower_to(it);
    }
  }

  const float *row_;
  int64_t count_;
  double temperature_;
  double floor_;
  const HeadstartNoise &noise_;
  double peak_ = 0, best_ = 0;
  float log_scale_ = 0, cut_ = 0;
  int found_ = 0;
  bool overflow_ = false;
  int64_t found_ids_[kMost];
  double ratios_[kMost];
};

// The token at a position; -1 where that cannot be told in short.
static inline int32_t drawn(const float *row, int64_t count, const HeadstartSampling &sampling, int position) {
  const float peak = peak_of(row, count);
  if (!std::isfinite(peak)) return -1;
  HeadstartNoise noise = sampling.noise;
  noise.counter[0] = static_cast<uint32_t>(position);
  const Floors floors = floors_of(row, count, peak, sampling);
  int64_t id;
  Contest contest(row, count, sampling.temperature, floors.loose, noise);
  // Who wins among more is the winner among fewer, if it is one of them.
  return contest.run(&id, 1) == 1 && row[id] >= floors.sure ? static_cast<int32_t>(id) : -1;
}
