// What the instruction sets of x86 processors share: all of them have AVX2 and conversions of half precision (F16C).
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "kernels/isa/cache_levels.h"

static inline void pause_core() { _mm_pause(); }

// Rounds to nearest even.
static inline uint16_t to_half(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
static inline float from_half(uint16_t bits) { return _cvtsh_ss(bits); }

// out[i][j] = words[j][i].
static inline __attribute__((always_inline)) void interleave(uint32_t *out, const uint32_t (&words)[4][16]) {
  for (int i = 0; i < 16; i += 4) {
    __m128 block[4];  // moved about, never computed with
    for (int j = 0; j < 4; ++j) block[j] = _mm_load_ps(reinterpret_cast<const float *>(words[j] + i));
    _MM_TRANSPOSE4_PS(block[0], block[1], block[2], block[3]);
    for (int j = 0; j < 4; ++j) _mm_storeu_ps(reinterpret_cast<float *>(out + 4 * (i + j)), block[j]);
  }
}
