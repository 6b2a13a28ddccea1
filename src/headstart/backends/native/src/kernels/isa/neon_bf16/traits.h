// NEON with dot products of bytes and of bf16 pairs.
#pragma once
#include "kernels/isa/arm.h"

#define HEADSTART_QUADS "kernels/isa/neon/quads.h"
#define HEADSTART_VECTOR "kernels/vectors/vector_quads.h"
#define HEADSTART_SHORTS "kernels/vectors/shorts_quads.h"
#define HEADSTART_KERNEL "kernels/isa/neon_bf16/kernel.h"
#define HEADSTART_DOT_BYTES "kernels/vectors/dot_bytes_quads.h"

constexpr bool kTiledBf16 = false, kTwelveBits = false, kAsksLineByLine = false, kSignedBytes = true,
               kWordPlanes = false, kBytePlanes = false;
constexpr int kTileEntries = 24, kFmaRows = 3, kHalvedRows = 3;
constexpr int kBlockRows[] = {1, 1};
constexpr int kStoredRows = 3, kFusedRows = 2;
constexpr int kScreenedRows = 256;
constexpr int kWeightHint = kToL2, kTwoBytesAhead = 8192;
