// One thread's share of several residual streams: what comes before, between and behind the layers' own work.
#pragma once
#include "pass/worker_rows.h"

class WorkerStreams {
 public:
  WorkerStreams(Panel &panel, WorkerRows &rows) : t_(rows), p_(panel), m_(panel.model) {}

  // All streams of embeddings, of which the first is there.
  void spread() {
    const ResidualStreams &streams = *p_.streams;
    for (int stream = 0; stream < streams.others(); ++stream) {
      const PackedLinear &projection = m_.spread[stream];
      t_.linear(projection, t_.pack_norm(projection, kNoNorm), t_.rows,
                t_.copy_columns(streams.other(stream), streams.stride()));
      t_.barrier();
    }
    t_.my_rows(t_.rows, [&](int row) { streams.strengthen(row, t_.x(row)); });
    t_.barrier();
  }

  // x becomes the mean of all streams.
  void merge() {
    const ResidualStreams &streams = *p_.streams;
    t_.my_rows(t_.rows, [&](int row) { streams.begin_sum(row, t_.x(row)); });
    for (int stream = 0; stream < streams.others(); ++stream) {
      const PackedLinear &projection = m_.merge[stream];
      t_.linear(projection, t_.pack(projection, t_.rows, [&](int row, float *) { return streams.other(stream, row); }),
                t_.rows, t_.copy_columns(p_.branch, p_.branch_stride));
      t_.barrier();
      t_.my_rows(t_.rows, [&](int row) { streams.add(row, p_.branch + row * p_.branch_stride, t_.x(row)); });
      t_.barrier();
    }
    t_.my_rows(t_.rows, [&](int row) { streams.end_sum(t_.x(row)); });
    t_.barrier();
  }

  void predict(const DecoderLayer &layer) {
    t_.my_rows(t_.rows, [&](int row) { p_.streams->predict(layer, row, t_.x(row), t_.thread); });
    t_.barrier();
  }

  void correct(const DecoderLayer &layer) {
    t_.my_rows(t_.rows, [&](int row) { p_.streams->correct(layer, row, t_.x(row), t_.thread); });
    t_.barrier();
  }

 private:
  WorkerRows &t_;
  Panel &p_;
  Decoder &m_;
};
