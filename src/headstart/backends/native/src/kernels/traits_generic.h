// Any processor with a compiler: plain operations on vectors of four, and each kernel's reference.
#pragma once
#include "portable.h"

#define HEADSTART_VECTOR "vector_generic.h"
#define HEADSTART_SHORTS "shorts_generic.h"
#define HEADSTART_KERNEL "kernel_vnni.h"
#define HEADSTART_DOT_BYTES "dot_bytes_generic.h"

constexpr bool kTiledBf16 = false, kTwelveBits = false, kAsksLineByLine = false, kSignedBytes = true;
constexpr int kTileEntries = 24, kFmaRows = 1, kHalvedRows = 2;
constexpr int kBlockRows[] = {1, 1};
constexpr int kStoredRows = 1, kFusedRows = 1;
constexpr int kScreenedRows = 2;
constexpr int kWeightHint = kToL2, kTwoBytesAhead = 8192;
