// IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S: of eight or four weights a file has the number of a point of a codebook,
// which says their magnitudes; beside it their signs, and for 16 or 32 weights a scale of four bits. Every weight is
// half * factor * (2 scale + 1) * magnitude * sign, all of it exact in a float. IQ1_S, IQ1_M: points are of -1, 0 and
// 1; instead of signs 8 or 32 weights have a delta of an eighth, which is added to or taken from all; scales of three
// bits.
//
// A *code* is a weight by itself: which magnitude it has, then its sign (or its delta's). The codebooks are the `gguf`
// package's; they come at run time (`headstart_set_codebook`).
#pragma once
#include "kernels/formats/stored_numbers.h"

constexpr int kCodedInputs = 256;

// A block's parts, whatever its type.
struct CodedBlock {
  uint8_t half[2], scales[16];
  alignas(8) uint8_t codes[kCodedInputs];
};

// What codes stand for: of three bits (twice), of four.
struct CodesOfIQ1 {  // eighths
  static constexpr int kBits = 3, kLargest = 9;
  static constexpr float kFactor = 1.f / 8;
  static constexpr int8_t kNumbers[16] = {-7, 1, 9, 0, -9, -1, 7, 0, -7, 1, 9, 0, -9, -1, 7, 0};
};
struct CodesOfIQ2 {
  static constexpr int kBits = 3, kLargest = 43;
  static constexpr float kFactor = 1.f / 8;
  static constexpr int8_t kNumbers[16] = {8, 25, 43, 0, -8, -25, -43, 0, 8, 25, 43, 0, -8, -25, -43, 0};
};
struct CodesOfIQ3_XXS {
  static constexpr int kBits = 4, kLargest = 62;
  static constexpr float kFactor = 1.f / 4;
  static constexpr int8_t kNumbers[16] = {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62};
};
struct CodesOfIQ3_S {
  static constexpr int kBits = 4, kLargest = 15;
  static constexpr float kFactor = 1.f;
  static constexpr int8_t kNumbers[16] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
};

// The codes of a point's weights, all of them positive.
template <int kThePoints, int kTheSize>
struct Codebook {
  static constexpr int kPoints = kThePoints, kSize = kTheSize;
  uint8_t codes[kPoints][kSize];

  // Eight weights: one point's, or two points' one after the other.
  uint64_t eight(int point) const {
    static_assert(kSize == 8, "a point is all of them");
    uint64_t all;
    std::memcpy(&all, codes[point], sizeof all);
    return all;
  }
  uint64_t eight(int first, int second) const {
    static_assert(kSize == 4, "a point is half of them");
    uint32_t lower, upper;
    std::memcpy(&lower, codes[first], sizeof lower), std::memcpy(&upper, codes[second], sizeof upper);
    return lower | static_cast<uint64_t>(upper) << 32;
  }
};

// Bit i of `bits` as byte i.
static inline uint64_t bits_as_bytes(unsigned bits) {
  const uint64_t one_each = bits * 0x0101010101010101u & 0x8040201008040201u;
  return (one_each + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u;
}
// Eight signs of which a file has seven: the number of minus signs is even.
static inline unsigned eight_signs(unsigned seven) {
  return seven | (static_cast<unsigned>(__builtin_parity(seven)) << 7);
}
static inline unsigned stored_number(const uint8_t *p, int bytes) {
  uint32_t number = 0;
  std::memcpy(&number, p, bytes);
  return number;
}
static inline int stored_nibble(const uint8_t *p, int i) { return p[i / 2] >> (i % 2 * 4) & 15; }

struct HalfFirst {
  static constexpr int kSignInputs = 1;
  static unsigned half(const uint8_t *b) { return stored_number(b, 2); }
};
struct CodebookOfIQ1 {
  static inline Codebook<2048, 8> codebook;
};

// Each type's layout: its codebook, inputs that share a scale, a sign, and a block's half, scales, points and signs.
struct LayoutIQ1_S : HalfFirst, CodebookOfIQ1 {
  using Codes = CodesOfIQ1;
  static constexpr int kBytes = 50, kScaleInputs = 32, kSignInputs = 32;
  static unsigned upper(const uint8_t *b, int i) { return stored_number(b + 34 + 2 * i, 2); }
  static int scale(const uint8_t *b, int i) { return upper(b, i) >> 12 & 7; }
  static uint64_t points(const uint8_t *b, int eight) {
    return codebook.eight(static_cast<int>(b[2 + eight] | (upper(b, eight / 4) >> (eight % 4 * 3) & 7) << 8));
  }
  static unsigned signs(const uint8_t *b, int eight) { return upper(b, eight / 4) >> 15 ? 255 : 0; }
};

struct LayoutIQ1_M : CodebookOfIQ1 {
  using Codes = CodesOfIQ1;
  static constexpr int kBytes = 56, kScaleInputs = 16, kSignInputs = 8;
  static unsigned word(const uint8_t *b, int i) { return stored_number(b + 48 + 2 * i, 2); }
  static unsigned half(const uint8_t *b) {
    unsigned all = 0;
    for (int i = 0; i < 4; ++i) all |= word(b, i) >> 12 << 4 * i;
    return all;
  }
  static int scale(const uint8_t *b, int i) { return word(b, i / 4) >> (i % 4 * 3) & 7; }
  static uint64_t points(const uint8_t *b, int eight) {
    return codebook.eight(b[eight] | (stored_nibble(b + 32, eight) & 7) << 8);
  }
  static unsigned signs(const uint8_t *b, int eight) { return stored_nibble(b + 32, eight) & 8 ? 255 : 0; }
};

struct LayoutIQ2_XXS : HalfFirst {
  using Codes = CodesOfIQ2;
  static constexpr int kBytes = 66, kScaleInputs = 32;
  static inline Codebook<256, 8> codebook;
  static int scale(const uint8_t *b, int i) { return b[9 + 8 * i] >> 4; }
  static uint64_t points(const uint8_t *b, int eight) { return codebook.eight(b[2 + eight / 4 * 8 + eight % 4]); }
  static unsigned signs(const uint8_t *b, int eight) {
    return eight_signs(stored_number(b + 6 + eight / 4 * 8, 4) >> (eight % 4 * 7) & 127);
  }
};

struct LayoutIQ2_XS : HalfFirst {
  using Codes = CodesOfIQ2;
  static constexpr int kBytes = 74, kScaleInputs = 16;
  static inline Codebook<512, 8> codebook;
  static int scale(const uint8_t *b, int i) { return stored_nibble(b + 66, i); }
  static uint64_t points(const uint8_t *b, int eight) {
    return codebook.eight(static_cast<int>(stored_number(b + 2 + 2 * eight, 2) & 511));
  }
  static unsigned signs(const uint8_t *b, int eight) { return eight_signs(stored_number(b + 2 + 2 * eight, 2) >> 9); }
};

struct LayoutIQ2_S : HalfFirst {
  using Codes = CodesOfIQ2;
  static constexpr int kBytes = 82, kScaleInputs = 16;
  static inline Codebook<1024, 8> codebook;
  static int scale(const uint8_t *b, int i) { return stored_nibble(b + 74, i); }
  static uint64_t points(const uint8_t *b, int eight) {
    return codebook.eight(b[2 + eight] | (b[66 + eight / 4] >> (eight % 4 * 2) & 3) << 8);
  }
  static unsigned signs(const uint8_t *b, int eight) { return b[34 + eight]; }
};

struct LayoutIQ3_XXS : HalfFirst {
  using Codes = CodesOfIQ3_XXS;
  static constexpr int kBytes = 98, kScaleInputs = 32;
  static inline Codebook<256, 4> codebook;
  static int scale(const uint8_t *b, int i) { return b[69 + 4 * i] >> 4; }
  static uint64_t points(const uint8_t *b, int eight) { return codebook.eight(b[2 + 2 * eight], b[3 + 2 * eight]); }
  static unsigned signs(const uint8_t *b, int eight) {
    return eight_signs(stored_number(b + 66 + eight / 4 * 4, 4) >> (eight % 4 * 7) & 127);
  }
};

struct LayoutIQ3_S : HalfFirst {
  using Codes = CodesOfIQ3_S;
  static constexpr int kBytes = 110, kScaleInputs = 32;
  static inline Codebook<512, 4> codebook;
  static int scale(const uint8_t *b, int i) { return stored_nibble(b + 106, i); }
  static uint64_t points(const uint8_t *b, int eight) {
    const unsigned upper = b[66 + eight / 4] >> (eight % 4 * 2);
    return codebook.eight(b[2 + 2 * eight] | (upper & 1) << 8, b[3 + 2 * eight] | (upper >> 1 & 1) << 8);
  }
  static unsigned signs(const uint8_t *b, int eight) { return b[74 + eight]; }
};

template <class Codes>
static inline float unit_of_codes(float half, int scale) {
  return half * Codes::kFactor * static_cast<float>(2 * scale + 1);
}

template <class Layout>
struct BlockOfCodes {
  using Codes = typename Layout::Codes;
  static constexpr int kInputs = kCodedInputs, kBytes = Layout::kBytes, kScaleInputs = Layout::kScaleInputs;
  static constexpr int kSignInputs = Layout::kSignInputs;

  static void take_apart(const uint8_t *b, CodedBlock &to) {
    const auto half = static_cast<uint16_t>(Layout::half(b));
    std::memcpy(to.half, &half, 2);
    for (int i = 0; i < kInputs / kScaleInputs; ++i) to.scales[i] = static_cast<uint8_t>(Layout::scale(b, i));
    for (int eight = 0; eight < kInputs / 8; ++eight) {
      const uint64_t codes = Layout::points(b, eight) | bits_as_bytes(Layout::signs(b, eight)) << (Codes::kBits - 1);
      std::memcpy(to.codes + 8 * eight, &codes, sizeof codes);
    }
  }
  static void read(const uint8_t *b, float *to) {
    CodedBlock block;
    take_apart(b, block);
    for (int at = 0; at < kInputs; at += kScaleInputs) {
      const float unit = unit_of_codes<Codes>(stored_half(block.half), block.scales[at / kScaleInputs]);
      for (int k = at; k < at + kScaleInputs; ++k) to[k] = unit * static_cast<float>(Codes::kNumbers[block.codes[k]]);
    }
  }
  static void grids(const uint8_t *b, StoredGrid *to) {
    CodedBlock block;
    take_apart(b, block);
    for (int i = 0; i < kInputs / kGridInputs; ++i) {
      const float unit = unit_of_codes<Codes>(stored_half(block.half), block.scales[i * kGridInputs / kScaleInputs]);
      to[i] = {unit, -128.f * unit};
    }
  }
};
using BlockIQ1_S = BlockOfCodes<LayoutIQ1_S>;
using BlockIQ1_M = BlockOfCodes<LayoutIQ1_M>;
using BlockIQ2_XXS = BlockOfCodes<LayoutIQ2_XXS>;
using BlockIQ2_XS = BlockOfCodes<LayoutIQ2_XS>;
using BlockIQ2_S = BlockOfCodes<LayoutIQ2_S>;
using BlockIQ3_XXS = BlockOfCodes<LayoutIQ3_XXS>;
using BlockIQ3_S = BlockOfCodes<LayoutIQ3_S>;

// Of a kind of block that has one.
template <class Block>
static inline void set_codebook(Block, const uint8_t *) {}
template <class Layout>
static inline void set_codebook(BlockOfCodes<Layout>, const uint8_t *codes) {
  std::memcpy(Layout::codebook.codes, codes, sizeof Layout::codebook.codes);
}
