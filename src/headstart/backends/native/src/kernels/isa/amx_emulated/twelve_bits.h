// Unpacks bf16 weights of twelve bits in plain code; see isa/avx512/twelve_bits.h.
#pragma once
#include "kernels/formats/twelve_bits.h"

class TwelveBitTiles {
 public:
  TwelveBitTiles(const PairCode &code, const ListedWeight *listed, const char *packed, Prefetch)
      : upper_(code.upper), listed_(listed), packed_(reinterpret_cast<const uint8_t *>(packed)) {}

  // The next tile, written to `to` [kTileCells].
  void unpack(Bf16 *to) {
    for (int cell = 0; cell < kTileCells; ++cell) {
      const uint8_t *const group = packed_ + cell / kPackedCells * kPackedBytes;
      const int step = cell % kPackedCells / 64, at = packed_place(cell & 63);
      const int upper = upper_[group[128 + at] >> (4 * step) & 15];
      to[cell] = {static_cast<uint16_t>(upper << 8 | group[step * 64 + at])};
    }
    packed_ += kPackedTileBytes;
    for (; listed_->place < end_; ++listed_) to[listed_->place - (end_ - kTileCells)] = listed_->weight;
    end_ += kTileCells;
  }

 private:
  const std::array<uint8_t, 16> upper_;
  const ListedWeight *listed_;
  const uint8_t *packed_;
  uint32_t end_ = kTileCells;  // of what comes next, in the pair's cells
};
