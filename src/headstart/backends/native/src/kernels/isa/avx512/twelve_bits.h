// Unpacks bf16 weights of twelve bits with AVX-512.
#pragma once
#include <immintrin.h>

#include "kernels/formats/twelve_bits.h"

// Reads the tiles of a pair one after the other, into memory or group by group into registers.
class TwelveBitTiles {
 public:
  TwelveBitTiles(const PairCode &code, const ListedWeight *listed, const char *packed, Prefetch prefetch)
      : upper_(_mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i *>(code.upper.data())))),
        listed_(listed),
        packed_(packed),
        prefetch_(prefetch) {}

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
  template <int kIndex>
  HEADSTART_PREFETCHES __m512i line() {
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
