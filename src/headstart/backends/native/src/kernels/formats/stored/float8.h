// How a pair of columns keeps FP8: units, then for every four inputs a line of each half, [column][4 numbers], in the
// order of planes.h. Units are floats: one for each column, or where a folder has one for 128 x 128 weights, for every
// 128 inputs one for each half of the pair.
#pragma once
#include "kernels/formats/stored/planes.h"

struct Float8Pair {
  bool in_blocks;
  int inputs;  // padded

  int run() const { return float8_run(in_blocks, inputs); }
  int header() const {
    const int units = in_blocks ? 2 * ((inputs + run() - 1) / run()) : kColumns, bytes = units * 4;
    return (bytes + kHalfLine - 1) / kHalfLine * kHalfLine;
  }
  size_t bytes() const { return header() + static_cast<size_t>(inputs) * kColumns; }
  // What a row of `count` inputs takes where rows stand by themselves.
  size_t row_bytes(int count) const {
    const int of_row = float8_run(in_blocks, count);
    return (count + of_row - 1) / of_row * sizeof(float) + count;
  }
  // Place of a column's unit for the inputs of a run.
  int unit(int column, int of_run) const { return in_blocks ? 2 * of_run + column / 16 : column; }

  // A row of `count` inputs that fills a column, or back.
  template <bool kPacks>
  void move(uint8_t *row, char *pair, int column, int count) const {
    const int of_row = float8_run(in_blocks, count), units = (count + of_row - 1) / of_row;
    for (int i = 0; i < units; ++i) move_bytes<kPacks>(row + 4 * i, pair + 4 * unit(column, i), 4);
    row += 4 * units;
    char *line = pair + header();
    for (int k = 0; k < count; k += Plane<8>::kInputs, line += kPairLine) {
      uint8_t four[Plane<8>::kInputs] = {};
      const int some = count - k < Plane<8>::kInputs ? count - k : Plane<8>::kInputs;
      if (kPacks) std::memcpy(four, row + k, some);
      Plane<8>::move<kPacks>(four, 0, line, column);
      if (!kPacks) std::memcpy(row + k, four, some);
    }
  }
};

static inline Float8Pair float8_pair(int kind, int inputs) { return {is_float8_in_blocks(kind), inputs}; }

// Bf16 has every number of FP8: shifted, with another bias of the exponent; those below 2^-6 stand in a table. `bits`:
// the upper byte of each number.
static inline Shorts bf16_of_float8(Shorts bits) {
  static constexpr int8_t kSmall[16] = {0x00, int8_t(0x00), int8_t(0x80), int8_t(0xc0), 0x00, 0x20, 0x40, 0x60,
                                        0x00, 0x3b,         0x3b,         0x3b,         0x3c, 0x3c, 0x3c, 0x3c};
  const Shorts shifted = shifted_signed(bits, 4);
  return by_parts([&](int i) {
    const ShortPart number = (shifted.part[i] & 0x87f0) + 0x3c00;
    const ShortPart place = (bits.part[i] & 0x0700) | (bits.part[i] >> 8 & 7) | 0x0800;
    const ShortPart small = looked_up_part(place, kSmall) | (bits.part[i] & 0x8000);
    return (bits.part[i] & 0x7800) == 0 ? small : number;
  });
}
