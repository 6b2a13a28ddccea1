// One thread's share of the convolutions within blocks (DFlash 2: drafting/methods/dflash/head_parts.py): what a part
// of a layer reads instead of its rows, and what becomes of what it gives. A row's kernels depend on what it reads.
#pragma once
#include "pass/worker_rows.h"

class WorkerConvolution {
 public:
  // Around which part of a layer.
  struct Part {
    int taps;  // LinearIndex
    NormIndex norm;
    ConstantIndex kernels;
  };
  static constexpr Part kAroundAttention{kAttentionTaps, kAttentionNorm, kAttentionKernels};
  static constexpr Part kAroundMlp{kMlpTaps, kMlpNorm, kMlpKernels};

  WorkerConvolution(Panel &panel, WorkerRows &rows) : t_(rows), p_(panel), m_(panel.model) {}

  // The normed stream, convolved: `store(row, from)` gets each of the thread's rows, padded.
  template <class Store>
  void enter(const DecoderLayer &layer, const Part &part, Store &&store) {
    const PackedLinear &projection = layer.linears[part.taps];
    const Activations &packed = t_.pack(projection, t_.rows, [&](int row, float *scratch) {
      t_.norm_row(layer.norms[part.norm], t_.x(row), scratch);
      if (row % t_.threads == t_.thread) std::memcpy(normed(row), scratch, m_.hidden * sizeof(float));
      return scratch;
    });
    t_.linear(projection, packed, t_.rows, t_.copy_columns(p_.changes, p_.change_stride));
    t_.barrier();
    t_.my_rows(t_.rows, [&](int row) {
      convolve(layer, part, 0, row, p_.normed, p_.normed_stride, t_.scratch());
      std::fill(t_.scratch() + m_.shape.hidden, t_.scratch() + m_.hidden, 0.f);
      store(row, t_.scratch());
    });
    t_.barrier();
  }

  // x = x + what `output` gives, convolved.
  void leave(const DecoderLayer &layer, const Part &part, const PackedLinear &output, const Activations &input) {
    t_.linear(output, input, t_.rows, t_.copy_columns(p_.branch, p_.branch_stride));
    t_.barrier();
    t_.my_rows(t_.rows, [&](int row) {
      float *const mixed = t_.scratch(), *const x = t_.x(row);
      convolve(layer, part, 1, row, p_.branch, p_.branch_stride, mixed);
      for (int k = 0; k < m_.shape.hidden; ++k) x[k] += mixed[k];
    });
    t_.barrier();
  }

 private:
  float *normed(int row) const { return p_.normed + row * p_.normed_stride; }

  // to = the sum over the row and those before it in its block, each times its tap's kernel. `side`: before the part,
  // or after it.
  void convolve(const DecoderLayer &layer, const Part &part, int side, int row, const float *rows, size_t stride,
                float *to) const {
    const HeadstartBlockConvolution &of = m_.shape.block_convolution;
    const int size = m_.shape.hidden, groups = size / of.group, pass_row = t_.pass_row(row);
    const int before = pass_row - p_.text.layout.sequence_of(pass_row).first_row;
    const float *kernel = layer.constants[part.kernels].data() + static_cast<size_t>(side * of.taps) * size;
    const float *change = p_.changes + row * p_.change_stride + side * of.taps * groups;
    for (int tap = 0; tap < of.taps && tap <= before; ++tap, kernel += size, change += groups) {
      const float *const from = rows + (row - tap) * stride;
      for (int group = 0; group < groups; ++group)
        for (int k = group * of.group; k < (group + 1) * of.group; ++k) {
          const float product = (kernel[k] + change[group]) * from[k];
          to[k] = tap ? to[k] + product : product;
        }
    }
  }

  WorkerRows &t_;
  Panel &p_;
  Decoder &m_;
};
