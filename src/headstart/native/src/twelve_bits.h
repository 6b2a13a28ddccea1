// bf16 weights in twelve bits, without loss: memory delivers a third more of them in the same time.
//
// The upper byte of a weight is its sign and the upper seven bits of its exponent, and of these trained weights use
// few: eight values cover a factor of 65,536. So a pair of columns keeps a table of its eight most frequent ones, four
// bits of a weight say its sign and its place there, and the weights of other exponents, one in some thousands, are
// listed. (The idea of DFloat11, Zhang et al. 2025, arXiv:2504.11651, with codes of one length, which vectors decode.)
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <vector>

#include "read_ahead.h"

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

#if defined(HEADSTART_AMX) || defined(HEADSTART_AVX512BF16)

// bf16 is multiplied in less time than memory takes, so that there is time to unpack.
constexpr bool kTwelveBits = true;

// Whether a group's lines are read one after the other, each right after it is asked what comes later: on Intel's cores
// memory then delivers a sixth more than where a group asks for all first (docs/decisions/0038).
#if defined(HEADSTART_AMX)
constexpr bool kAsksLineByLine = true;
#else
constexpr bool kAsksLineByLine = false;
#endif

// Reads the tiles of a pair one after the other, into memory or group by group into registers.
class TwelveBitTiles {
 public:
  TwelveBitTiles(const PairCode &code, const ListedWeight *listed, const char *packed, Prefetch prefetch)
      : upper_(_mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i *>(code.upper.data())))),
        listed_(listed), packed_(packed), prefetch_(prefetch) {}

  // The next tile, written to `to` [kTileCells].
  HEADSTART_PREFETCHES void unpack(Bf16 *to) {
    for (int group = 0; group < kTileGroups; ++group) {
      __m512i cells[4];
      decode(cells);
      store(to + group * kPackedCells, cells);
    }
    for (; listed_->place < end_; ++listed_) to[listed_->place - (end_ - kTileCells)] = listed_->weight;
    end_ += kTileCells;
  }

  // The next group whole, in registers.
  HEADSTART_PREFETCHES void next_group(__m512i (&cells)[4]) {
    decode(cells);
    if (__builtin_expect(listed_->place < end_of_group_, 0)) {
      alignas(64) Bf16 group[kPackedCells];
      store(group, cells);
      for (; listed_->place < end_of_group_; ++listed_)
        group[listed_->place - (end_of_group_ - kPackedCells)] = listed_->weight;
      for (int i = 0; i < 4; ++i) cells[i] = _mm512_load_si512(group + 32 * i);
    }
    end_of_group_ += kPackedCells;
  }

 private:
  // What the table says.
  HEADSTART_PREFETCHES void decode(__m512i (&cells)[4]) {
    const __m512i low_half = _mm512_set1_epi8(15);
    if constexpr (!kAsksLineByLine) prefetch_.ask<kPackedLines>(packed_);
    const __m512i lower[2] = {line<0>(), line<1>()}, codes = line<2>();
    const __m512i first = _mm512_shuffle_epi8(upper_, _mm512_and_si512(codes, low_half));
    const __m512i second = _mm512_shuffle_epi8(upper_, _mm512_and_si512(_mm512_srli_epi16(codes, 4), low_half));
    cells[0] = _mm512_unpacklo_epi8(lower[0], first), cells[1] = _mm512_unpackhi_epi8(lower[0], first);
    cells[2] = _mm512_unpacklo_epi8(lower[1], second), cells[3] = _mm512_unpackhi_epi8(lower[1], second);
    packed_ += kPackedBytes;
  }
  template <int kIndex> HEADSTART_PREFETCHES __m512i line() {
    if constexpr (kAsksLineByLine) prefetch_.ask_line<kIndex, kPackedLines>(packed_);
    const __m512i bytes = _mm512_load_si512(packed_ + kIndex * kCacheLine);
    if constexpr (kAsksLineByLine) __asm__ volatile("" ::"v"(bytes) : "memory");  // none is moved past another
    return bytes;
  }
  static HEADSTART_PREFETCHES void store(Bf16 *to, const __m512i (&cells)[4]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) _mm512_store_si512(to + 32 * i, cells[i]);
  }

  const __m512i upper_;
  const ListedWeight *listed_;
  const char *packed_;
  uint32_t end_ = kTileCells, end_of_group_ = kPackedCells;  // of what comes next, in the pair's cells
  Prefetch prefetch_;
};

#else
constexpr bool kTwelveBits = false;
#endif
