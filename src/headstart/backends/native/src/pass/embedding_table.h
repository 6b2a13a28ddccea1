// The table of token embeddings: borrowed, or kept as a file has it, or the output head where that is kept so, or in
// blocks of 8 bits, and both are one. A pass reads a row or two.
#pragma once
#include "kernels/formats/stored_rows.h"
#include "kernels/openmp.h"
#include "kernels/platform.h"
#include "kernels/products/linear.h"

class EmbeddingTable {
 public:
  static constexpr int kShared = -1;  // a kind beside those of files

  // `rows` is borrowed.
  void borrow(const HeadstartRows &rows) { kept_ = {}, head_ = nullptr, rows_ = rows; }
  // `head` lives as long as this.
  void share(const PackedLinear &head) {
    kept_ = {}, head_ = &head, rows_ = {};
    rows_.kind = kShared, rows_.rows = head.outputs;
  }

  // What `other` has; it lives as long as this.
  void take(const EmbeddingTable &other) { kept_ = {}, head_ = other.head_, rows_ = other.rows_; }

  // Keeps a copy, of floats and halves in bf16 where values are rounded to that anyway.
  void keep(const HeadstartRows &rows, int inputs, bool rounds, int threads) {
    head_ = nullptr;
    const bool halves =
        rounds && (rows.kind == static_cast<int>(Stored::f32) || rows.kind == static_cast<int>(Stored::f16));
    rows_ = rows;
    if (halves) rows_.kind = static_cast<int>(Stored::bf16), rows_.row_bytes = inputs * sizeof(Bf16);
    kept_ = HugeBuffer(static_cast<size_t>(rows_.rows) * rows_.row_bytes);
    rows_.data = kept_.data();
    const StoredMatrix from(&rows, 1, inputs);
#pragma omp parallel num_threads(threads)
    {
      std::vector<float> floats(inputs);
#pragma omp for schedule(static)
      for (int row = 0; row < rows.rows; ++row) {
        char *const to = kept_.data() + static_cast<size_t>(row) * rows_.row_bytes;
        if (halves)
          from.read(row, reinterpret_cast<Bf16 *>(to), floats.data());
        else
          std::memcpy(to, static_cast<const char *>(rows.data) + static_cast<size_t>(row) * rows.row_bytes,
                      rows_.row_bytes);
      }
    }
  }

  // One row; `rounds`: to bf16.
  void read(int token, int inputs, bool rounds, float *to) const {
    if (head_)
      read_packed_row(*head_, token, to);
    else
      read_stored_row(rows_.kind, static_cast<const uint8_t *>(rows_.data) + token * rows_.row_bytes, inputs, to);
    if (rounds && rows_.kind != static_cast<int>(Stored::bf16))
      for (int k = 0; k < inputs; ++k) to[k] = to_float(to_bf16(to[k]));
  }

  int64_t bytes() const { return static_cast<int64_t>(kept_.size()); }

  // For what stores tables and reads them again.
  HeadstartRows &rows() { return rows_; }
  HugeBuffer &kept() { return kept_; }

 private:
  const PackedLinear *head_ = nullptr;
  HeadstartRows rows_{};
  HugeBuffer kept_;
};
