// What mixers that keep states are told of a panel, and what those with a recurrence share.
#pragma once
#include "pass/decoder.h"
#include "pass/states.h"

struct MixerRows {
  float *projected;  // [panel row][stride] what the layer's first product gave; what is convolved makes way for more
  size_t stride;
  const int32_t *places;   // [panel row] its row of `out`; -1: nobody asks for it
  const Activations &out;  // what the output projection reads
  ElementKind kind;        // of `out`

  float *projected_of(int row) const { return projected + row * stride; }
};

// One thread's channels of a convolution over the projection's columns from `first` on: through silu, to what enters
// the recurrence.
static inline void convolve_projected(const DecoderLayer &layer, const LayerStates &states, const MixerRows &rows,
                                      int first, int thread, int threads) {
  const std::vector<float> &bias = layer.constants[kKernelBias];
  const int groups = states.shape.channels / 16;
  for (int group = groups * thread / threads; group < groups * (thread + 1) / threads; ++group) {
    const int channel = group * 16;
    convolve(
        states, channel, layer.constants[kKernel].data(), bias.empty() ? nullptr : bias.data(),
        [&](int row) { return load(rows.projected_of(row) + first + channel); },
        [&](int row, Lanes sum) { store(states.entering(row) + channel, activate(Activation::silu, sum)); });
  }
}
