// The same in the fourth Zen generation, on which weights that go past L3 take longer.
#pragma once
#include "kernels/isa/x86.h"

#define HEADSTART_VECTOR "kernels/isa/avx512/vector.h"
#define HEADSTART_SHORTS "kernels/isa/avx512/shorts.h"
#define HEADSTART_KERNEL "kernels/isa/avx512bf16/kernel.h"
#define HEADSTART_DOT_BYTES "kernels/isa/avx512/dot_bytes.h"
#define HEADSTART_TWELVE_BITS "kernels/isa/avx512/twelve_bits.h"

constexpr bool kTiledBf16 = true, kTwelveBits = true, kAsksLineByLine = false, kSignedBytes = false,
               kWordPlanes = false, kBytePlanes = false;
constexpr int kTileEntries = 24, kFmaRows = 12, kHalvedRows = 12;
constexpr int kBlockRows[] = {6, 4};
constexpr int kStoredRows = 12, kFusedRows = 8;
constexpr int kScreenedRows = 256;
constexpr int kWeightHint = kToL2, kTwoBytesAhead = 8192;
