// bf16 weights in twelve bits, without loss: memory delivers a third more of them in the same time.
//
// The upper byte of a weight is its sign and the upper seven bits of its exponent, and of these trained weights use
// few: eight values cover a factor of 65,536. So a pair of columns keeps a table of its eight most frequent ones, four
// bits of a weight say its sign and its place there, and the weights of other exponents, one in some thousands, are
// listed. (The idea of DFloat11, Zhang et al. 2025, arXiv:2504.11651, with codes of one length, which vectors decode.)
#pragma once
#include <algorithm>
#include <array>
#include <vector>

#include "kernels/products/read_ahead.h"

// A weight of a pair whose exponent is not in the pair's table.
struct ListedWeight {
  uint32_t place;  // in the pair's cells; the last one of a pair is `kNoPlace`
  Bf16 weight;
};
constexpr uint32_t kNoPlace = UINT32_MAX;

struct PairCode {
  alignas(16) std::array<uint8_t, 16> upper{};  // [sign * 8 + place in the table] the upper byte
  uint32_t first_listed = 0;                    // in the layer's list
};

// Two steps of a pair tile are packed together: the lower bytes of 64 weights, those of 64 more, and 64 bytes of codes,
// the first 64 weights' in their lower halves.
constexpr int kPackedCells = 128, kPackedBytes = 192, kPackedLines = kPackedBytes / kCacheLine;
constexpr int kTileCells = static_cast<int>(TileOrder<Bf16>::kPairCells);
constexpr int kTileGroups = kTileCells / kPackedCells;
constexpr int kPackedTileBytes = kTileGroups * kPackedBytes;

// Where a weight's lower byte stands among those of its step, so that unpacking leaves weights in order: bytes are
// interleaved by halves of sixteen.
static inline int packed_place(int cell) { return (cell & 31) / 8 * 16 + (cell & 7) + (cell & 32) / 4; }

// Packs one pair of `cells` weights; what the table does not hold goes to the end of `listed`.
static inline PairCode pack_twelve_bits(const Bf16 *pair, int cells, uint8_t *to, std::vector<ListedWeight> &listed) {
  std::array<int, 128> count{};
  for (int i = 0; i < cells; ++i) ++count[(pair[i].bits >> 8) & 127];
  std::array<int, 128> place;
  place.fill(-1);
  PairCode code;
  for (int entry = 0; entry < 8; ++entry) {
    const int most = static_cast<int>(std::max_element(count.begin(), count.end()) - count.begin());
    place[most] = entry, count[most] = -1;
    code.upper[entry] = static_cast<uint8_t>(most), code.upper[8 + entry] = static_cast<uint8_t>(128 | most);
  }
  for (int i = 0; i < cells; ++i) {
    const int step = i % kPackedCells / 64, at = packed_place(i & 63), upper = pair[i].bits >> 8;
    uint8_t *const group = to + i / kPackedCells * kPackedBytes;
    group[step * 64 + at] = static_cast<uint8_t>(pair[i].bits);
    const int entry = place[upper & 127];
    if (entry < 0) listed.push_back({static_cast<uint32_t>(i), pair[i]});
    const int nibble = (upper >> 7) * 8 + std::max(entry, 0);
    uint8_t &codes = group[128 + at];
    codes = static_cast<uint8_t>(step ? (codes & 15) | nibble << 4 : nibble);
  }
  listed.push_back({kNoPlace, {}});
  return code;
}
