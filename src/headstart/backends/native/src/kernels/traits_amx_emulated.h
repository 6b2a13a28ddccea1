// The same with the unit's instructions in plain code, for tests.
#pragma once
#include "x86.h"

#define HEADSTART_VECTOR "vector_avx512.h"
#define HEADSTART_SHORTS "shorts_avx512.h"
#define HEADSTART_KERNEL "kernel_amx.h"
#define HEADSTART_DOT_BYTES "dot_bytes_avx512.h"
#define HEADSTART_TILES "tiles_emulated.h"

constexpr bool kTiledBf16 = false, kTwelveBits = true, kAsksLineByLine = true, kSignedBytes = false;
constexpr int kTileEntries = 16, kFmaRows = 12, kHalvedRows = 12;
constexpr int kBlockRows[] = {6, 4};
constexpr int kStoredRows = 12, kFusedRows = 8;
constexpr int kScreenedRows = 256;
constexpr int kWeightHint = kToL2, kTwoBytesAhead = 8192;
