// A linear layer by itself, for whatever runs between passes.
#pragma once
#include <algorithm>

#include "kernels/kernel.h"
#include "kernels/openmp.h"

class SingleLinear {
 public:
  SingleLinear(Precision precision, int threads, int outputs, int inputs, const StoredMatrix &weight, const float *bias,
               int bits)
      : SingleLinear(threads, precision_of(bits, precision), outputs, inputs, weight, bias, bits) {}

  size_t bytes() const { return linear_.bytes(); }

  // y[rows][outputs] = x[rows][inputs] . weights + bias. Null, or what is wrong.
  const char *run(int rows, const float *x, float *y) {
    return run_each(rows, x, [&](int row, int count, int column, int columns, const float *out) {
      for (int r = 0; r < count; ++r)
        std::memcpy(y + static_cast<size_t>(row + r) * linear_.outputs + column, out + r * kColumns,
                    columns * sizeof(float));
    });
  }

  // The same: `finish(row, count, column, columns, out)` gets outputs [column, column + columns) of rows [row, row +
  // count), kColumns floats from one row to the next, from the thread that computed them.
  template <class Finish>
  const char *run_each(int rows, const float *x, Finish &&finish) {
    for (int first = 0; first < rows; first += kRows) {
      const int count = std::min(kRows, rows - first);
      store_rows(count, x + static_cast<size_t>(first) * linear_.inputs);
      bool complete = true;
      deal_.reset(threads_);
#pragma omp parallel num_threads(threads_)
      {
        if (omp_get_num_threads() == threads_) {
          UnitScope scope;
          multiply(first, count, finish);
        } else {
          complete = false;
        }
      }
      if (!complete) return "OpenMP gave fewer threads than the layer was built for";
    }
    return nullptr;
  }

  // Some pairs of columns alone, ascending, by the calling thread: where few are wanted of many. As many rows as run
  // together at most.
  template <class Finish>
  void run_pairs(int rows, const float *x, const std::vector<int> &pairs, Finish &&finish) {
    UnitScope scope;
    store_rows(rows, x);
    alignas(64) float out[2 * kRowBlock * kColumns];
    for (const int pair : pairs) {
      const char *const weights = linear_.pair_weights(pair);
      ReadAhead once(weights, linear_.bytes_of(pair));
      run_pair(kernel_, linear_, pair, weights, input_, 0, rows, once, out, [&](int, int row, int count, float *of) {
        add_bias(linear_, pair, count, of);
        const int column = pair * kColumns;
        finish(row, count, column, std::min(kColumns, linear_.outputs - column), static_cast<const float *>(of));
      });
    }
  }

  static constexpr int kRows = 256;  // run together

 private:
  SingleLinear(int threads, Precision precision, int outputs, int inputs, const StoredMatrix &weight, const float *bias,
               int bits)
      : threads_(threads),
        kernel_(linear_kernel(precision)),
        linear_(layout(precision, outputs, inputs, round_up(inputs, kPlaneBytes), ceil_div(outputs, kColumns), threads,
                       bits)) {
    for (int t = 0; t < threads; ++t) streams_.push_back(allocate_stream({&linear_}, t));
    pack_linear(linear_, weight, bias, [&](int column) { return column < outputs ? column : -1; });
    input_ = packed_rows(precision, kernel_.element, memory_, kRows, linear_.padded_inputs);
    padded_ = memory_.emplace_back(linear_.padded_inputs * sizeof(float)).as<float>();
  }

  static PackedLinear layout(Precision precision, int outputs, int inputs, int padded, int pairs, int threads,
                             int bits) {
    if (is_kept(precision))
      return stored_layout(precision, outputs, inputs, padded, pairs, threads, [&](int) { return bits - kStoredForm; });
    return linear_layout(precision, outputs, inputs, padded, pairs, threads, bits);
  }

  void store_rows(int rows, const float *x) {
    for (int row = 0; row < rows; ++row) {
      std::memcpy(padded_, x + static_cast<size_t>(row) * linear_.inputs, linear_.inputs * sizeof(float));
      kernel_.store_row(input_, row, padded_, linear_.padded_inputs);
    }
  }

  template <class Finish>
  void multiply(int first, int rows, Finish &&finish) {
    const int thread = omp_get_thread_num();
    ReadAhead ahead(streams_[thread].data(), streams_[thread].size());
    run_linear(kernel_, linear_, input_, rows, thread, ahead, deal_,
               [&](int pair, int row, int count, const float *out) {
                 const int column = pair * kColumns;
                 finish(first + row, count, column, std::min(kColumns, linear_.outputs - column), out);
               });
  }

  int threads_;
  LinearKernel kernel_;
  PackedLinear linear_;
  std::vector<HugeBuffer> streams_;
  std::vector<AlignedBuffer> memory_;
  Activations input_;
  PairDeal deal_;
  float *padded_;  // one row
};
