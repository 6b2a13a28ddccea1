// AVX2 with a dot product of bytes (AVX-VNNI).
#pragma once
#include "kernels/isa/x86.h"

#define HEADSTART_VECTOR "kernels/isa/avx2/vector.h"
#define HEADSTART_SHORTS "kernels/isa/avx2/shorts.h"
#define HEADSTART_KERNEL "kernels/isa/vnni_kernel.h"
#define HEADSTART_DOT_BYTES "kernels/isa/avxvnni/dot_bytes.h"

constexpr bool kTiledBf16 = false, kTwelveBits = false, kAsksLineByLine = false, kSignedBytes = false,
               kWordPlanes = false, kBytePlanes = false;
constexpr int kTileEntries = 24, kFmaRows = 3, kHalvedRows = 6;
constexpr int kBlockRows[] = {2, 1};
constexpr int kStoredRows = 6, kFusedRows = 2;
constexpr int kScreenedRows = 256;
constexpr int kWeightHint = kToL2, kTwoBytesAhead = 8192;
