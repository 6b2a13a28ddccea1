// What the instruction set that this library is built for has and prefers. A build names one header of these traits in
// HEADSTART_TRAITS (backends/native/isa.py); no other code asks what processor it is for. Each header says:
//
//   HEADSTART_VECTOR, HEADSTART_KERNEL   headers with its lanes and its kernels
//   HEADSTART_DOT_BYTES                  likewise with its dot product of bytes, where kernels ask for one
//   HEADSTART_TWELVE_BITS                likewise with what unpacks bf16 weights of twelve bits, where they are kept so
//   HEADSTART_SHORTS                     likewise with its 16-bit integers and their dot product
//   HEADSTART_QUADS                      likewise with what it says for four lanes, where the ones before are made of
//                                        these (vectors/*_quads.h)
//   kTiledBf16       rows of bf16 stand tile by tile (products/linear.h)
//   kTwelveBits      bf16 weights are kept in twelve bits: they are multiplied faster than memory brings them
//   kAsksLineByLine  lines of packed weights are read one after the other, each right after it is asked what comes
//                    later (docs/decisions/0038), where others ask for a group's lines first
//   kSignedBytes     its dot product multiplies signed by signed bytes, where others multiply unsigned by signed ones
//   kWordPlanes      the two planes of a row's 8-bit inputs are kept as numbers of 16 bits: it has no product of bytes
//   kBytePlanes      rows against a file's own blocks stand in two planes of bytes as well, for tiles
//   kTileEntries     query rows of an attention tile: what a tile of a matrix unit holds, else twice what registers do
//   kFmaRows         rows whose sums of 32 columns the registers hold
//   kHalvedRows      rows whose sums of half of them they hold. Widening a bf16 weight takes as long as two rows'
//                    products, so that where registers are few, more rows share it half by half
//   kBlockRows       [planes - 1] rows at a time against weights in blocks
//   kStoredRows      rows at a time against a file's own blocks
//   kFusedRows       most rows of such a pass whose weights go from the blocks straight into products; for more they
//                    are made once and stand in L1
//   kScreenedRows    most rows of a pass whose screened logits take less time than the head's own
//   kWeightHint      how weights are asked for that are used soon: kToL2; or past L3, from where they leave without a
//                    stay there, to the good of whatever else a round reads (docs/decisions/0032)
//   kTwoBytesAhead   how far ahead each of two pairs that are multiplied at once asks
// and by its own means, shared with others:
//
//   pause_core()             tells a core that it waits
//   to_half(), from_half()   conversions of half precision
//   interleave()             stores four times sixteen words side by side
#pragma once
#include HEADSTART_TRAITS
