// The kinds of blocks that are multiplied as a file has them, and FP8 beside them.
#pragma once
#include "kernels/formats/stored/codebook.h"
#include "kernels/formats/stored/few_bits.h"
#include "kernels/formats/stored/float8.h"
#include "kernels/formats/stored/four_bit_floats.h"
#include "kernels/formats/stored/integers.h"
#include "kernels/formats/stored/nonlinear.h"
#include "kernels/formats/stored/q2_k.h"
#include "kernels/formats/stored/q3_k.h"
#include "kernels/formats/stored/q4_k.h"
#include "kernels/formats/stored/q5_k.h"
#include "kernels/formats/stored/q6_k.h"
#include "kernels/formats/stored/q8_0.h"
#include "kernels/formats/stored/small_blocks.h"
#include "kernels/formats/stored/ternary.h"

// Calls `work` with the kind of block; false where there is no kernel for those of that number.
template <class Work>
static inline bool with_stored(int kind, Work &&work) {
  switch (static_cast<Stored>(kind)) {
    case Stored::q4_k:
      return work(StoredQ4_K()), true;
    case Stored::q5_k:
      return work(StoredQ5_K()), true;
    case Stored::q6_k:
      return work(StoredQ6_K()), true;
    case Stored::q4_0:
      return work(StoredQ4_0()), true;
    case Stored::q4_1:
      return work(StoredQ4_1()), true;
    case Stored::q5_0:
      return work(StoredQ5_0()), true;
    case Stored::q5_1:
      return work(StoredQ5_1()), true;
    case Stored::q8_0:
      return work(StoredQ8_0()), true;
    case Stored::q2_k:
      return work(StoredQ2_K()), true;
    case Stored::q3_k:
      return work(StoredQ3_K()), true;
    case Stored::iq4_nl:
      return work(StoredIQ4_NL()), true;
    case Stored::iq4_xs:
      return work(StoredIQ4_XS()), true;
    case Stored::iq1_s:
      return work(StoredIQ1_S()), true;
    case Stored::iq1_m:
      return work(StoredIQ1_M()), true;
    case Stored::iq2_xxs:
      return work(StoredIQ2_XXS()), true;
    case Stored::iq2_xs:
      return work(StoredIQ2_XS()), true;
    case Stored::iq2_s:
      return work(StoredIQ2_S()), true;
    case Stored::iq3_xxs:
      return work(StoredIQ3_XXS()), true;
    case Stored::iq3_s:
      return work(StoredIQ3_S()), true;
    case Stored::mxfp4:
      return work(StoredMXFP4()), true;
    case Stored::q1_0:
      return work(StoredQ1_0()), true;
    case Stored::q2_0:
      return work(StoredQ2_0()), true;
    case Stored::q2_0_128:
      return work(StoredQ2_0_128()), true;
    case Stored::tq1_0:
      return work(StoredTQ1_0()), true;
    case Stored::tq2_0:
      return work(StoredTQ2_0()), true;
    case Stored::int4_32:
      return work(StoredInt4_32()), true;
    case Stored::int4_64:
      return work(StoredInt4_64()), true;
    case Stored::int4_128:
      return work(StoredInt4_128()), true;
    case Stored::int4_256:
      return work(StoredInt4_256()), true;
    case Stored::int8_32:
      return work(StoredInt8_32()), true;
    case Stored::int8_128:
      return work(StoredInt8_128()), true;
    case Stored::int8_row:
      return work(StoredBytes()), true;
    case Stored::nf4:
      return work(StoredNF4()), true;
    case Stored::fp4:
      return work(StoredFP4()), true;
    case Stored::nvfp4:
      return work(StoredNVFP4()), true;
    default:
      return false;
  }
}

// Bytes of 32 columns; of the last block a part may have no inputs.
static inline size_t stored_bytes(int kind, int inputs) {
  if (is_float8(kind)) return float8_pair(kind, inputs).bytes();
  size_t bytes = 0;
  with_stored(kind, [&](auto block) {
    bytes = static_cast<size_t>((inputs + block.kInputs - 1) / block.kInputs) * block.kBytes;
  });
  return bytes;
}

// Brings a file's row of `inputs` into one column of a pair.
static inline void pack_stored(int kind, const uint8_t *row, char *pair, int column, int inputs, int padded_inputs) {
  if (is_float8(kind)) {
    float8_pair(kind, padded_inputs).move<true>(const_cast<uint8_t *>(row), pair, column, inputs);
    return;
  }
  with_stored(kind, [&](auto blocks) {
    using Blocks = decltype(blocks);
    using Block = typename Blocks::Block;
    constexpr int kEach = Block::kBytes * (Blocks::kInputs / Block::kInputs);
    const uint8_t *const end = row + inputs / Block::kInputs * Block::kBytes;
    for (; row < end; row += kEach, pair += Blocks::kBytes) {
      uint8_t stored[kEach] = {};  // the last may be a part of one
      std::memcpy(stored, row, std::min<ptrdiff_t>(kEach, end - row));
      Blocks::template move<true>(stored, pair, column);
    }
  });
}

// Whether a kind says itself what a column's block stands for, since its file's bytes cannot be had back.
template <class Blocks, class = void>
constexpr bool reads_itself = false;
template <class Blocks>
constexpr bool reads_itself<Blocks, std::void_t<decltype(&Blocks::read)>> = true;

// The floats that `inputs` of one column's block stand for.
template <class Blocks>
static inline void read_stored(const char *block, int column, int inputs, float *to) {
  if constexpr (reads_itself<Blocks>) {
    Blocks::read(block, column, inputs, to);
  } else {
    using Block = typename Blocks::Block;
    uint8_t stored[Block::kBytes * (Blocks::kInputs / Block::kInputs)] = {};
    Blocks::template move<false>(stored, const_cast<char *>(block), column);
    for (int k = 0; k < inputs; k += Block::kInputs) Block::read(stored + k / Block::kInputs * Block::kBytes, to + k);
  }
}
