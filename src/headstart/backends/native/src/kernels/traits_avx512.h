// AVX-512 with the dot product of bytes (VNNI).
#pragma once
#include "x86.h"

#define HEADSTART_VECTOR "vector_avx512.h"
#define HEADSTART_SHORTS "shorts_avx512.h"
#define HEADSTART_KERNEL "kernel_vnni.h"
#define HEADSTART_DOT_BYTES "dot_bytes_avx512.h"

constexpr bool kTiledBf16 = false, kTwelveBits = false, kAsksLineByLine = false, kSignedBytes = false;
constexpr int kTileEntries = 24, kFmaRows = 12, kHalvedRows = 12;
constexpr int kBlockRows[] = {6, 4};
constexpr int kStoredRows = 12, kFusedRows = 8;
constexpr int kScreenedRows = 256;
constexpr int kWeightHint = kToL2, kTwoBytesAhead = 8192;
