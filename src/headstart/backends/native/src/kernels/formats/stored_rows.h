// Rows of a matrix as a file keeps them: floats, halves, bf16, or GGUF's blocks (the layouts of ggml-quants.h in
// ggml-org/ggml). Every value has the bits that the `gguf` package's dequantize gives: the same operations on floats.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "api.h"
#include "kernels/formats/cells.h"
#include "kernels/formats/codebook_rows.h"
#include "kernels/formats/folder_rows.h"
#include "kernels/formats/stored_numbers.h"
#include "kernels/traits.h"

// The numbers of types in GGUF, and from 100 on those of folders (formats/folder_rows.h).
enum class Stored {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq2_xxs = 16,
  iq2_xs = 17,
  iq3_xxs = 18,
  iq1_s = 19,
  iq4_nl = 20,
  iq3_s = 21,
  iq2_s = 22,
  iq4_xs = 23,
  iq1_m = 29,
  bf16 = 30,
  tq1_0 = 34,
  tq2_0 = 35,
  mxfp4 = 39,
  q1_0 = 41,
  q2_0 = 42,
  int4_32 = 100,
  int4_64 = 101,
  int4_128 = 102,
  int4_256 = 103,
  int8_32 = 104,
  int8_128 = 105,
  int8_row = 106,
  nf4 = 107,
  fp4 = 108,
  nvfp4 = 109,
  fp8 = 110,
  fp8_128 = 111,
  q2_0_128 = 112,  // of 128, which files know by the other's number
};

// Of FP8, which is multiplied in kernels of its own (products/float8_linear.h).
static inline bool is_float8(int kind) {
  return kind == static_cast<int>(Stored::fp8) || kind == static_cast<int>(Stored::fp8_128);
}
static inline bool is_float8_in_blocks(int kind) { return kind == static_cast<int>(Stored::fp8_128); }
// Whose weights bf16 has to the bit. NVFP4 has scales of 16 inputs: for a matrix unit its runs of integers are too
// short.
static inline bool is_widened(int kind) {
  return is_float8(kind) || (kBytePlanes && kind == static_cast<int>(Stored::nvfp4));
}

// Blocks of 32, of four-bit numbers: the first sixteen inputs' in the lower halves of bytes.
static inline void lower_then_upper(const uint8_t *bytes, uint8_t *to) {
  for (int k = 0; k < 16; ++k) to[k] = bytes[k] & 15, to[16 + k] = bytes[k] >> 4;
}
static inline void add_fifth_bits(const uint8_t *bits, uint8_t *to) {
  uint32_t all;
  std::memcpy(&all, bits, 4);
  for (int k = 0; k < 32; ++k) to[k] |= (all >> k & 1) << 4;
}

// Each kind of block: its inputs, its bytes, the floats and the grids of one.
struct BlockQ4_0 {
  static constexpr int kInputs = 32, kBytes = 18;
  static void read(const uint8_t *b, float *to) {
    const float d = stored_half(b);
    uint8_t q[32];
    lower_then_upper(b + 2, q);
    for (int k = 0; k < 32; ++k) to[k] = d * static_cast<float>(q[k] - 8);
  }
  static void grids(const uint8_t *b, StoredGrid *to) { fill_two(to, stored_half(b), -8.f * stored_half(b)); }
};

struct BlockQ4_1 {
  static constexpr int kInputs = 32, kBytes = 20;
  static void read(const uint8_t *b, float *to) {
    const float d = stored_half(b), m = stored_half(b + 2);
    uint8_t q[32];
    lower_then_upper(b + 4, q);
    for (int k = 0; k < 32; ++k) to[k] = d * static_cast<float>(q[k]) + m;
  }
  static void grids(const uint8_t *b, StoredGrid *to) { fill_two(to, stored_half(b), stored_half(b + 2)); }
};

struct BlockQ5_0 {
  static constexpr int kInputs = 32, kBytes = 22;
  static void read(const uint8_t *b, float *to) {
    const float d = stored_half(b);
    uint8_t q[32];
    lower_then_upper(b + 6, q);
    add_fifth_bits(b + 2, q);
    for (int k = 0; k < 32; ++k) to[k] = d * static_cast<float>(q[k] - 16);
  }
  static void grids(const uint8_t *b, StoredGrid *to) { fill_two(to, stored_half(b), -16.f * stored_half(b)); }
};

struct BlockQ5_1 {
  static constexpr int kInputs = 32, kBytes = 24;
  static void read(const uint8_t *b, float *to) {
    const float d = stored_half(b), m = stored_half(b + 2);
    uint8_t q[32];
    lower_then_upper(b + 8, q);
    add_fifth_bits(b + 4, q);
    for (int k = 0; k < 32; ++k) to[k] = d * static_cast<float>(q[k]) + m;
  }
  static void grids(const uint8_t *b, StoredGrid *to) { fill_two(to, stored_half(b), stored_half(b + 2)); }
};

struct BlockQ8_0 {
  static constexpr int kInputs = 32, kBytes = 34;
  static void read(const uint8_t *b, float *to) {
    const float d = stored_half(b);
    const auto *q = reinterpret_cast<const int8_t *>(b + 2);
    for (int k = 0; k < 32; ++k) to[k] = static_cast<float>(q[k]) * d;
  }
  static void grids(const uint8_t *b, StoredGrid *to) { fill_two(to, stored_half(b), -128.f * stored_half(b)); }
};

struct BlockQ2_K {
  static constexpr int kInputs = 256, kBytes = 84;
  static void read(const uint8_t *b, float *to) {
    const float d = stored_half(b + 80), least = stored_half(b + 82);
    for (int at = 0; at < 256; at += 16) {
      const float unit = d * static_cast<float>(b[at / 16] & 15), below = least * static_cast<float>(b[at / 16] >> 4);
      const uint8_t *q = b + 16 + at / 128 * 32 + at % 32;
      const int shift = at % 128 / 32 * 2;
      for (int k = 0; k < 16; ++k) to[at + k] = unit * static_cast<float>(q[k] >> shift & 3) - below;
    }
  }
  static void grids(const uint8_t *b, StoredGrid *to) {
    const float d = stored_half(b + 80), least = stored_half(b + 82);
    for (int i = 0; i < 16; ++i) to[i] = {d * static_cast<float>(b[i] & 15), -(least * static_cast<float>(b[i] >> 4))};
  }
};

struct BlockQ3_K {
  static constexpr int kInputs = 256, kBytes = 110;
  static void read(const uint8_t *b, float *to) {
    for (int at = 0; at < 256; at += 16) {
      const float scale = unit(b, at / 16);
      const uint8_t *q = b + 32 + at / 128 * 32 + at % 32, *high = b + at % 32;
      const int shift = at % 128 / 32 * 2, bit = at / 32;
      for (int k = 0; k < 16; ++k)
        to[at + k] = scale * static_cast<float>((q[k] >> shift & 3) - (high[k] >> bit & 1 ? 0 : 4));
    }
  }
  static void grids(const uint8_t *b, StoredGrid *to) {
    for (int i = 0; i < 16; ++i) to[i] = {unit(b, i), -4.f * unit(b, i)};
  }
  static float unit(const uint8_t *b, int i) {
    const uint8_t *const scales = b + 96;
    const int lower = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4, upper = scales[8 + i % 4] >> (i / 4 * 2) & 3;
    return stored_half(b + 108) * static_cast<float>((lower | upper << 4) - 32);
  }
};

// Units and offsets of eight blocks of 32 in Q4_K and Q5_K: six bits each, times a half of the 256.
static inline void scales_of_k(const uint8_t *b, float *units, float *below) {
  const float d = stored_half(b), least = stored_half(b + 2);
  const uint8_t *const s = b + 4;
  for (int i = 0; i < 8; ++i) {
    const int scale = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | (s[i - 4] >> 2 & 0x30);
    const int offset = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | (s[i] >> 2 & 0x30);
    units[i] = d * static_cast<float>(scale), below[i] = least * static_cast<float>(offset);
  }
}
static inline void grids_of_k(const uint8_t *b, StoredGrid *to) {
  float units[8], below[8];
  scales_of_k(b, units, below);
  for (int i = 0; i < 8; ++i) fill_two(to + 2 * i, units[i], -below[i]);
}

struct BlockQ4_K {
  static constexpr int kInputs = 256, kBytes = 144;
  static void read(const uint8_t *b, float *to) {
    float units[8], below[8];
    scales_of_k(b, units, below);
    for (int i = 0; i < 8; ++i) {
      const uint8_t *q = b + 16 + i / 2 * 32;
      const int shift = i % 2 * 4;
      for (int k = 0; k < 32; ++k) to[i * 32 + k] = units[i] * static_cast<float>(q[k] >> shift & 15) - below[i];
    }
  }
  static void grids(const uint8_t *b, StoredGrid *to) { grids_of_k(b, to); }
};

struct BlockQ5_K {
  static constexpr int kInputs = 256, kBytes = 176;
  static void read(const uint8_t *b, float *to) {
    float units[8], below[8];
    scales_of_k(b, units, below);
    for (int i = 0; i < 8; ++i) {
      const uint8_t *high = b + 16, *q = b + 48 + i / 2 * 32;
      const int shift = i % 2 * 4;
      for (int k = 0; k < 32; ++k)
        to[i * 32 + k] = units[i] * static_cast<float>((q[k] >> shift & 15) | (high[k] >> i & 1) << 4) - below[i];
    }
  }
  static void grids(const uint8_t *b, StoredGrid *to) { grids_of_k(b, to); }
};

struct BlockQ6_K {
  static constexpr int kInputs = 256, kBytes = 210;
  static void read(const uint8_t *b, float *to) {
    for (int at = 0; at < 256; at += 16) {
      const float scale = unit(b, at / 16);
      const int i = at % 128 / 32;  // of four that share bytes
      const uint8_t *low = b + at / 128 * 64 + i % 2 * 32 + at % 32, *high = b + 128 + at / 128 * 32 + at % 32;
      for (int k = 0; k < 16; ++k)
        to[at + k] = scale * static_cast<float>(((low[k] >> (i / 2 * 4) & 15) | (high[k] >> (i * 2) & 3) << 4) - 32);
    }
  }
  static void grids(const uint8_t *b, StoredGrid *to) {
    for (int i = 0; i < 16; ++i) to[i] = {unit(b, i), -32.f * unit(b, i)};
  }
  static float unit(const uint8_t *b, int i) {
    return stored_half(b + 208) * static_cast<float>(static_cast<int8_t>(b[192 + i]));
  }
};

// Where levels of one or two bits stand, and their unit. TQ1_0: four or five levels of three to a byte, of which it is
// the fraction in base 3; times a power of three, and then three, what goes beyond a byte is the level.
struct LayoutTQ1_0 {
  static constexpr int kInputs = 256, kBytes = 54, kBits = 2, kUnit = 52;
  static int level(const uint8_t *b, int k) {
    constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
    if (k < 160) return three(b[k % 32], kPowers[k / 32]);
    return k < 240 ? three(b[32 + k % 16], kPowers[k / 16 - 10]) : three(b[48 + k % 4], kPowers[k / 4 - 60]);
  }
  static int three(uint8_t byte, uint8_t power) { return static_cast<uint8_t>(byte * power) * 3 >> 8; }
};
struct LayoutTQ2_0 {
  static constexpr int kInputs = 256, kBytes = 66, kBits = 2, kUnit = 64;
  static int level(const uint8_t *b, int k) { return b[k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3; }
};
template <int kEach, int kLevelBits>
struct LayoutFewBits {
  static constexpr int kInputs = kEach, kBits = kLevelBits, kUnit = 0, kBytes = 2 + kEach * kBits / 8;
  static int level(const uint8_t *b, int k) { return b[2 + k * kBits / 8] >> k * kBits % 8 & ((1 << kBits) - 1); }
};

// Levels stand for -1 or 1; for -1 to 2.
template <class Layout>
struct BlockFewBits : Layout {
  static constexpr int kFactor = Layout::kBits == 1 ? 2 : 1;
  static float value(float unit, int level) { return unit * static_cast<float>(kFactor * level - 1); }
  static void read(const uint8_t *b, float *to) {
    const float unit = stored_half(b + Layout::kUnit);
    for (int k = 0; k < Layout::kInputs; ++k) to[k] = value(unit, Layout::level(b, k));
  }
  static void grids(const uint8_t *b, StoredGrid *to) {
    const float unit = stored_half(b + Layout::kUnit);
    fill_all(to, Layout::kInputs / kGridInputs, kFactor * unit, -unit);
  }
};
using BlockTQ1_0 = BlockFewBits<LayoutTQ1_0>;
using BlockTQ2_0 = BlockFewBits<LayoutTQ2_0>;
using BlockQ1_0 = BlockFewBits<LayoutFewBits<128, 1>>;
using BlockQ2_0 = BlockFewBits<LayoutFewBits<64, 2>>;
using BlockQ2_0_128 = BlockFewBits<LayoutFewBits<128, 2>>;

constexpr int8_t kNonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kMicroscaled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice e2m1

// 32 numbers of four bits that stand for others.
static inline void looked_up(const uint8_t *bytes, const int8_t *table, float unit, float *to) {
  for (int k = 0; k < 16; ++k) {
    to[k] = unit * static_cast<float>(table[bytes[k] & 15]);
    to[16 + k] = unit * static_cast<float>(table[bytes[k] >> 4]);
  }
}

struct BlockIQ4_NL {
  static constexpr int kInputs = 32, kBytes = 18;
  static void read(const uint8_t *b, float *to) { looked_up(b + 2, kNonlinear, stored_half(b), to); }
  static void grids(const uint8_t *b, StoredGrid *to) { fill_two(to, stored_half(b), -128.f * stored_half(b)); }
};

struct BlockIQ4_XS {
  static constexpr int kInputs = 256, kBytes = 136;
  static void read(const uint8_t *b, float *to) {
    for (int i = 0; i < 8; ++i) looked_up(b + 8 + i * 16, kNonlinear, unit(b, i), to + i * 32);
  }
  static void grids(const uint8_t *b, StoredGrid *to) {
    for (int i = 0; i < 8; ++i) fill_two(to + 2 * i, unit(b, i), -128.f * unit(b, i));
  }
  static float unit(const uint8_t *b, int i) {
    const int upper = b[2 + i / 4] >> (i % 4 * 2) & 3, lower = b[4 + i / 2] >> (i % 2 * 4) & 15;
    return stored_half(b) * static_cast<float>((lower | upper << 4) - 32);
  }
};

struct BlockMXFP4 {
  static constexpr int kInputs = 32, kBytes = 17;
  static void read(const uint8_t *b, float *to) { looked_up(b + 1, kMicroscaled, unit(b), to); }
  static void grids(const uint8_t *b, StoredGrid *to) { fill_two(to, unit(b), -16.f * unit(b)); }
  static float unit(const uint8_t *b) {  // half of the power of two
    const uint32_t bits = b[0] < 2 ? 0x00200000u << b[0] : (b[0] - 1u) << 23;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
};

// A float that counts for all of the matrix, the scales of each 16 inputs, levels two in a byte, the first in its lower
// half. What a scale is for files, E4M3, is a number as FP8 has it.
struct BlockNVFP4 {
  static constexpr int kInputs = 64, kEach = 16, kScales = 4, kLevels = 8, kBytes = kLevels + kInputs / 2;
  static void read(const uint8_t *b, float *to) {
    for (int k = 0; k < kInputs; ++k)
      to[k] = 0.5f * static_cast<float>(kMicroscaled[b[kLevels + k / 2] >> (k % 2 * 4) & 15]) * unit(b, k / kEach);
  }
  static void grids(const uint8_t *b, StoredGrid *to) {
    for (int i = 0; i < kInputs / kEach; ++i) to[i] = {0.5f * unit(b, i), -8.f * unit(b, i)};
  }
  static float unit(const uint8_t *b, int i) { return from_float8(b[kScales + i]) * stored_float(b); }
};

// Calls `work` with the kind of block; false where there is none of that number.
template <class Work>
static inline bool with_block(int kind, Work &&work) {
  switch (static_cast<Stored>(kind)) {
    case Stored::q4_0:
      return work(BlockQ4_0()), true;
    case Stored::q4_1:
      return work(BlockQ4_1()), true;
    case Stored::q5_0:
      return work(BlockQ5_0()), true;
    case Stored::q5_1:
      return work(BlockQ5_1()), true;
    case Stored::q8_0:
      return work(BlockQ8_0()), true;
    case Stored::q2_k:
      return work(BlockQ2_K()), true;
    case Stored::q3_k:
      return work(BlockQ3_K()), true;
    case Stored::q4_k:
      return work(BlockQ4_K()), true;
    case Stored::q5_k:
      return work(BlockQ5_K()), true;
    case Stored::q6_k:
      return work(BlockQ6_K()), true;
    case Stored::iq4_nl:
      return work(BlockIQ4_NL()), true;
    case Stored::iq4_xs:
      return work(BlockIQ4_XS()), true;
    case Stored::iq1_s:
      return work(BlockIQ1_S()), true;
    case Stored::iq1_m:
      return work(BlockIQ1_M()), true;
    case Stored::iq2_xxs:
      return work(BlockIQ2_XXS()), true;
    case Stored::iq2_xs:
      return work(BlockIQ2_XS()), true;
    case Stored::iq2_s:
      return work(BlockIQ2_S()), true;
    case Stored::iq3_xxs:
      return work(BlockIQ3_XXS()), true;
    case Stored::iq3_s:
      return work(BlockIQ3_S()), true;
    case Stored::tq1_0:
      return work(BlockTQ1_0()), true;
    case Stored::tq2_0:
      return work(BlockTQ2_0()), true;
    case Stored::q1_0:
      return work(BlockQ1_0()), true;
    case Stored::q2_0:
      return work(BlockQ2_0()), true;
    case Stored::q2_0_128:
      return work(BlockQ2_0_128()), true;
    case Stored::mxfp4:
      return work(BlockMXFP4()), true;
    case Stored::int4_32:
      return work(BlockIntegers<32, 4>()), true;
    case Stored::int4_64:
      return work(BlockIntegers<64, 4>()), true;
    case Stored::int4_128:
      return work(BlockIntegers<128, 4>()), true;
    case Stored::int4_256:
      return work(BlockIntegers<256, 4>()), true;
    case Stored::int8_32:
      return work(BlockIntegers<32, 8>()), true;
    case Stored::int8_128:
      return work(BlockIntegers<128, 8>()), true;
    case Stored::int8_row:
      return work(BlockBytes()), true;
    case Stored::nf4:
      return work(BlockFourBitFloats<kNormalFloats>()), true;
    case Stored::fp4:
      return work(BlockFourBitFloats<kFourBitFloats>()), true;
    case Stored::nvfp4:
      return work(BlockNVFP4()), true;
    default:
      return false;
  }
}

// One row as floats. The bytes may stand anywhere; a kind that is not known gives nothing.
static inline void read_stored_row(int kind, const uint8_t *row, int inputs, float *to) {
  switch (static_cast<Stored>(kind)) {
    case Stored::f32:
      std::memcpy(to, row, inputs * sizeof(float));
      return;
    case Stored::f16:
      for (int k = 0; k < inputs; ++k) to[k] = stored_half(row + 2 * k);
      return;
    case Stored::bf16:
      for (int k = 0; k < inputs; ++k) {
        Bf16 value;
        std::memcpy(&value, row + 2 * k, 2);
        to[k] = to_float(value);
      }
      return;
    case Stored::fp8:
    case Stored::fp8_128:
      read_float8_row(is_float8_in_blocks(kind), row, inputs, to);
      return;
    default:
      break;
  }
  with_block(kind, [&](auto block) {
    for (int at = 0; at < inputs; at += block.kInputs, row += block.kBytes) block.read(row, to + at);
  });
}

// The grids of one row, 16 inputs each; false where its kind has none.
static inline bool read_stored_grids(int kind, const uint8_t *row, int inputs, StoredGrid *to) {
  return with_block(kind, [&](auto block) {
    for (int at = 0; at < inputs; at += block.kInputs, row += block.kBytes) block.grids(row, to + at / kGridInputs);
  });
}

// A matrix of several parts, one below the other.
class StoredMatrix {
 public:
  StoredMatrix(const HeadstartRows *parts, int count, int inputs) : parts_(parts), count_(count), inputs_(inputs) {}

  void read(int output, float *to) const {
    const HeadstartRows *part;
    const uint8_t *row = find(output, part);
    read_stored_row(part->kind, row, inputs_, to);
  }
  void read(int output, Bf16 *to, float *scratch) const {
    const HeadstartRows *part;
    const uint8_t *row = find(output, part);
    if (part->kind == static_cast<int>(Stored::bf16)) {
      std::memcpy(to, row, inputs_ * sizeof(Bf16));
      return;
    }
    read_stored_row(part->kind, row, inputs_, scratch);
    for (int k = 0; k < inputs_; ++k) to[k] = to_bf16(scratch[k]);
  }
  // As the file has it.
  const uint8_t *row(int output) const {
    const HeadstartRows *part;
    return find(output, part);
  }
  bool read_grids(int output, StoredGrid *to) const {
    const HeadstartRows *part;
    const uint8_t *row = find(output, part);
    return read_stored_grids(part->kind, row, inputs_, to);
  }

 private:
  const uint8_t *find(int output, const HeadstartRows *&part) const {
    part = parts_;
    while (part + 1 < parts_ + count_ && output >= part->rows) output -= part++->rows;
    const int64_t row = part->order ? part->order[output] : output;
    return static_cast<const uint8_t *>(part->data) + row * part->row_bytes;
  }

  const HeadstartRows *parts_;
  int count_, inputs_;
};
