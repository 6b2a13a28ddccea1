// What mixers that keep states are told of a panel, and what those with a recurrence share.
#pragma once
#include "pass/decoder.h"
#include "pass/states.h"

struct MixerRows {
  const float *projected;  // [panel row][stride] what the layer's first product gave
  size_t stride;
  const int32_t *places;   // [panel row] its row of `out`; -1: nobody asks for it
  const Activations &out;  // what the output projection reads
  ElementKind kind;        // of `out`

  const float *projected_of(int row) const { return projected + row * stride; }
};

struct MixerScratch {
  float *convolved;  // [panel row][stride] what a convolution leaves for the recurrence, and what a row's units share
  size_t stride;
  float *running;  // a unit's state, the thread's own

  float *convolved_of(int row) const { return convolved + row * stride; }
};

// One thread's channels of a convolution over the projection's columns from `first` on: through silu, to the scratch.
static inline void convolve_projected(const DecoderLayer &layer, const LayerStates &states, const MixerRows &rows,
                                      const MixerScratch &scratch, int first, int thread, int threads) {
  const std::vector<float> &bias = layer.constants[kKernelBias];
  const int groups = states.shape.channels / 16;
  for (int group = groups * thread / threads; group < groups * (thread + 1) / threads; ++group) {
    const int channel = group * 16;
    convolve(
        states, channel, layer.constants[kKernel].data(), bias.empty() ? nullptr : bias.data(),
        [&](int row) { return load(rows.projected_of(row) + first + channel); },
        [&](int row, Lanes sum) { store(scratch.convolved_of(row) + channel, activate(Activation::silu, sum)); });
  }
}
