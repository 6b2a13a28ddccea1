// A decoder layer's packed weights, and how its parts are numbered.
#pragma once
#include <memory>

#include "api.h"
#include "kernels/kernel.h"
#include "pass/distance_bias.h"
#include "pass/embedding_table.h"
#include "pass/experts.h"
#include "pass/rotation.h"

// Through what the rows of a layer see each other, and what it does with every row by itself.
enum class Mixer { attention, latent, convolution, mamba, mamba2, delta, attention_mamba2, none, compressed };
enum class Channel { mlp, experts, mlp_experts, none };
enum class StateNorm { after_gate, before_gate, none };  // where the norm of what a state gives stands

enum LinearIndex { kQkv, kOutput, kUp, kDown, kOwnLinears };
// What cross attention, latent attention, compressed keys, a gate, mixers with states and a layer's input bring
// besides: no layer has two of these.
enum CrossLinearIndex { kCrossQuery = kOwnLinears, kCrossOutput };
enum LatentLinearIndex { kKeyUp = kOwnLinears, kValueUp, kQueryUp, kLatentGate };
enum CompressedLinearIndex { kLower = kOwnLinears, kRaise };
enum GateLinearIndex { kGate = kOwnLinears };
enum DeltaLinearIndex { kRates = kOwnLinears, kGateUp, kStepUp };
enum MambaLinearIndex { kSelection = kOwnLinears, kStep };
enum TwoMixersLinearIndex { kStateInput = kOwnLinears, kStateOutput };  // of the mixer beside attention
enum InputLinearIndex { kInputGate = kOwnLinears, kInputOutput };
enum BlockLinearIndex { kAttentionTaps = kOwnLinears, kMlpTaps };  // of a block head that convolves
enum SideLinearIndex { kSideDown = kInputOutput + 1, kSideUp };    // behind those of an input
// Of no layer; those of streams follow: what spreads all but the first, then what merges them.
enum ModelLinearIndex { kOutputHead, kFuse, kInputsProjection, kStreamLinears };
constexpr int kLinears = 8;          // places of a layer's matrices
constexpr int kAdapted = kGate + 1;  // those that adapters can change: a layer's own, and the gate of its attention
// Small parts of a layer.
enum ConstantIndex {
  kKernel,
  kKernelBias,
  kStepBias,
  kDecay,
  kSkip,
  kStateNorm,
  kScale,
  kExpertScales,
  kStreamRouter,
  kStreamPredict,
  kStreamCorrect,
  kStreamScale,
  kCurve,
  kAttentionKernels,
  kMlpKernels,
  kMixerMix,
  kMixerBase,
  kChannelMix,
  kChannelBase,
  kPlaces,
  kIndexPlaces,
  kExpertTable,
  kConstants
};
enum EndIndex { kEndMix, kEndBase, kEnds };                                               // those of no layer
enum OwnNormIndex { kFinalNorm, kFeatureNorm, kEmbeddingNorm, kInputsNorm, kPartNorms };  // of no layer
// Post norms are of what a part gives, sum norms of the stream that it was added to.
enum NormIndex {
  kAttentionNorm,
  kMlpNorm,
  kQueryNorm,
  kKeyNorm,
  kAttentionPostNorm,
  kMlpPostNorm,
  kCrossNorm,
  kAttentionSumNorm,
  kCrossSumNorm,
  kMlpSumNorm,
  kValueNorm,
  kInputNorm,
  kDensePostNorm,
  kExpertsNorm,
  kExpertsPostNorm,
  kRouterNorm,
  kSideNorm,
  kStreamNorm,
  kIndexNorm,
  kCompressedNorm,
  kNorms
};

constexpr int kMamba2Band = 32;  // elements of a head whose state stands together
constexpr int kDeltaBand = 32;   // likewise in the delta rule

struct HeadCount {
  int of_queries, of_keys;

  bool operator==(const HeadCount &other) const { return of_queries == other.of_queries && of_keys == other.of_keys; }
};

struct DecoderLayer : HeadstartLayer {
  Norm norms[kNorms];
  PackedLinear linears[kLinears];  // without pairs where there is no such matrix
  int queries = 0;                 // that the first product gives, or what they are made of
  int projected = 0;               // columns of the first product
  int beside = 0;                  // where those of a mixer beside attention stand, or the delta rule's rates
  int head_count = 0;              // which of `Decoder::head_counts` it has
  DistanceBias distance_bias;
  std::vector<float> sinks;                  // [heads] scores that no key has, or empty
  std::vector<float> constants[kConstants];  // padded with zeros; empty where there is no such part
  std::unique_ptr<ExpertsLayer> experts;     // then the dense matrices are the shared expert's, or stand beside them

  bool is(Mixer kind) const { return mixer == static_cast<int>(kind); }
  bool is(Channel kind) const { return channel == static_cast<int>(kind); }
  // Of what it gives.
  float scale() const { return constants[kScale].empty() ? 1.f : constants[kScale][0]; }
  // The same where the channel part comes last.
  float channel_scale() const { return input ? 1.f : scale(); }

  // The first of its matrices that every pass reads.
  const PackedLinear &first_linear() const {
    for (const int which : {kQkv, kUp})
      if (linears[which].pairs) return linears[which];
    return experts->router;
  }
};

// What layers read beside their stream: made of embeddings, and looked up by token.
struct InputsOfLayers {
  PackedLinear projection;
  Norm norm;  // of each
  EmbeddingTable table;
};
