// AVX2 with fused multiply-adds.
#pragma once
#include "kernels/isa/x86.h"

#define HEADSTART_VECTOR "kernels/isa/avx2/vector.h"
#define HEADSTART_SHORTS "kernels/isa/avx2/shorts.h"
#define HEADSTART_KERNEL "kernels/isa/avx2/kernel.h"

constexpr bool kTiledBf16 = false, kTwelveBits = false, kAsksLineByLine = false, kSignedBytes = false,
               kWordPlanes = true, kBytePlanes = false;
constexpr int kTileEntries = 24, kFmaRows = 2, kHalvedRows = 6;
constexpr int kBlockRows[] = {3, 4};
constexpr int kStoredRows = 5, kFusedRows = 4;
constexpr int kScreenedRows = 32;
constexpr int kWeightHint = kToL2, kTwoBytesAhead = 8192;
