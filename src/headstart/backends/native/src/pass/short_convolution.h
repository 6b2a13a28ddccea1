// A short convolution between two gates (LFM2: Amini et al. 2025, section 2.1).
#pragma once
#include "pass/state_mixer.h"

// One thread's channels. The projection: what gates the convolution's input, what gates its output, the input.
static inline void run_short_convolution(const DecoderLayer &layer, const LayerStates &states, const MixerRows &rows,
                                         int thread, int threads) {
  const std::vector<float> &bias = layer.constants[kKernelBias];
  const int size = states.shape.channels, groups = size / 16;
  for (int group = groups * thread / threads; group < groups * (thread + 1) / threads; ++group) {
    const int channel = group * 16;
    convolve(
        states, channel, layer.constants[kKernel].data(), bias.empty() ? nullptr : bias.data(),
        [&](int row) {
          const float *from = rows.projected_of(row) + channel;
          return load(from) * load(from + 2 * size);
        },
        [&](int row, Lanes mixed) {
          if (rows.places[row] >= 0)
            store_activation(rows.kind, rows.out, rows.places[row], channel,
                             load(rows.projected_of(row) + size + channel) * mixed);
        });
  }
}
