// The matrix unit (AMX) beside AVX-512.
#pragma once
#include "kernels/isa/x86.h"

#define HEADSTART_VECTOR "kernels/isa/avx512/vector.h"
#define HEADSTART_SHORTS "kernels/isa/avx512/shorts.h"
#define HEADSTART_KERNEL "kernels/isa/amx/kernel.h"
#define HEADSTART_DOT_BYTES "kernels/isa/avx512/dot_bytes.h"
#define HEADSTART_TWELVE_BITS "kernels/isa/avx512/twelve_bits.h"
#define HEADSTART_TILES "kernels/isa/amx/tiles.h"

constexpr bool kTiledBf16 = false, kTwelveBits = true, kAsksLineByLine = true, kSignedBytes = false,
               kWordPlanes = false, kBytePlanes = true;
constexpr int kTileEntries = 16, kFmaRows = 12, kHalvedRows = 12;
constexpr int kBlockRows[] = {6, 4};
constexpr int kStoredRows = 12, kFusedRows = 8;
constexpr int kScreenedRows = 256;
constexpr int kWeightHint = kToL2, kTwoBytesAhead = 8192;
