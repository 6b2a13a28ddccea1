// AVX2 with a dot product of bytes (AVX-VNNI).
#pragma once
#include "x86.h"

#define HEADSTART_VECTOR "vector_avx2.h"
#define HEADSTART_SHORTS "shorts_avx2.h"
#define HEADSTART_KERNEL "kernel_vnni.h"
#define HEADSTART_DOT_BYTES "dot_bytes_avxvnni.h"

constexpr bool kTiledBf16 = false, kTwelveBits = false, kAsksLineByLine = false, kSignedBytes = false;
constexpr int kTileEntries = 24, kFmaRows = 3, kHalvedRows = 4;
constexpr int kBlockRows[] = {2, 1};
constexpr int kStoredRows = 3, kFusedRows = 2;
constexpr int kScreenedRows = 256;
constexpr int kWeightHint = kToL2, kTwoBytesAhead = 8192;
