// NEON with the dot product of bytes.
#pragma once
#include "arm.h"

#define HEADSTART_VECTOR "vector_neon.h"
#define HEADSTART_SHORTS "shorts_neon.h"
#define HEADSTART_KERNEL "kernel_vnni.h"
#define HEADSTART_DOT_BYTES "dot_bytes_neon.h"

constexpr bool kTiledBf16 = false, kTwelveBits = false, kAsksLineByLine = false, kSignedBytes = true;
constexpr int kTileEntries = 24, kFmaRows = 2, kHalvedRows = 4;
constexpr int kBlockRows[] = {1, 1};
constexpr int kStoredRows = 3, kFusedRows = 2;
constexpr int kScreenedRows = 256;
constexpr int kWeightHint = kToL2, kTwoBytesAhead = 8192;
