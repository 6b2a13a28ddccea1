// The same with the unit's instructions in plain code, and vectors of AVX2: for tests on any processor.
#pragma once
#include "kernels/isa/x86.h"

#define HEADSTART_VECTOR "kernels/isa/avx2/vector.h"
#define HEADSTART_SHORTS "kernels/isa/avx2/shorts.h"
#define HEADSTART_KERNEL "kernels/isa/amx/kernel.h"
#define HEADSTART_DOT_BYTES "kernels/isa/avxvnni/dot_bytes.h"
#define HEADSTART_TWELVE_BITS "kernels/isa/amx_emulated/twelve_bits.h"
#define HEADSTART_TILES "kernels/isa/amx_emulated/tiles.h"

constexpr bool kTiledBf16 = false, kTwelveBits = true, kAsksLineByLine = true, kSignedBytes = false,
               kWordPlanes = false, kBytePlanes = true;
constexpr int kTileEntries = 16, kFmaRows = 3, kHalvedRows = 5;
constexpr int kBlockRows[] = {2, 1};
constexpr int kStoredRows = 6, kFusedRows = 2;
constexpr int kScreenedRows = 256;
constexpr int kWeightHint = kToL2, kTwoBytesAhead = 8192;
