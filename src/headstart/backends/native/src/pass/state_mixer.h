// What mixers that keep states are told of a panel.
#pragma once
#include "decoder.h"
#include "states.h"

struct MixerRows {
  const float *projected;  // [panel row][stride] what the layer's first product gave
  size_t stride;
  const int32_t *places;   // [panel row] its row of `out`; -1: nobody asks for it
  const Activations &out;  // what the output projection reads
  ElementKind kind;        // of `out`

  const float *projected_of(int row) const { return projected + row * stride; }
};
