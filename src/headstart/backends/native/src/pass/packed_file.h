// A decoder's packed weights in a file, and back: whatever set_linear, set_norm and set_embedding have made.
//
// The file: a header, the small parts one behind the other, then every stream in pieces that are written and read side
// by side. All of it is covered by sums, so that what is damaged is noticed. Sizes of streams follow from the layout; a
// file of another layout does not fit and is refused.
#pragma once
#include <errno.h>
#include <unistd.h>

#include <atomic>
#include <type_traits>
#include <vector>

#include "pass/decoder.h"

// Of words of 64 bits, eight chains side by side. Notices damage, not forgery.
class Sum {
 public:
  void add(const char *data, size_t bytes) {
    for (; bytes >= 64; data += 64, bytes -= 64)
      for (int i = 0; i < 8; ++i) mix(i, data + 8 * i, 8);
    for (int i = 0; bytes > 0; ++i) {
      const size_t some = bytes < 8 ? bytes : 8;
      mix(i, data, some), data += some, bytes -= some;
    }
  }
  uint64_t value() const {
    uint64_t all = 0;
    for (const uint64_t chain : chains_) all = (all ^ chain ^ chain >> 29) * kFactor;
    return all ^ all >> 32;
  }

 private:
  static constexpr uint64_t kFactor = 0x9e3779b97f4a7c15u;

  void mix(int chain, const char *data, size_t bytes) {
    uint64_t word = 0;
    std::memcpy(&word, data, bytes);
    uint64_t &h = chains_[chain];
    h = (h ^ word) * kFactor;
    h ^= h >> 31;
  }

  uint64_t chains_[8] = {1, 2, 3, 4, 5, 6, 7, 8};
};

class PackedFile {
 public:
  PackedFile(Decoder &model, int fd, int64_t start) : m_(model), fd_(fd), start_(start) {}

  // Null, or what failed.
  const char *write() {
    saving_ = true;
    small_.clear();
    small_parts();
    std::vector<Piece> pieces = cut();
    Header header = header_of(pieces);
    each_piece(pieces, [&](Piece &piece) {
      piece.sum.add(piece.data, piece.bytes);
      return write_at(piece.data, piece.bytes, piece.at);
    });
    if (failed_) return "the file cannot be written";
    header.small_sum = sum_of(small_.data(), small_.size());
    std::vector<uint64_t> sums = sums_of(pieces);
    header.sums_sum = sum_of(reinterpret_cast<const char *>(sums.data()), sums.size() * sizeof(uint64_t));
    const bool written =
        write_at(small_.data(), small_.size(), kSmallAt) &&
        write_at(reinterpret_cast<const char *>(sums.data()), sums.size() * sizeof(uint64_t), sums_at()) &&
        write_at(reinterpret_cast<const char *>(&header), sizeof header, 0);
    return written ? nullptr : "the file cannot be written";
  }

  // Null, or what is wrong with the file; then the model's weights are of no use.
  const char *read() {
    Header header{};
    if (!read_at(reinterpret_cast<char *>(&header), sizeof header, 0)) return "the file is cut short";
    if (header.magic != kMagic || header.small_bytes > kMostSmall) return "the file is damaged";
    small_.resize(header.small_bytes);
    if (!read_at(small_.data(), small_.size(), kSmallAt)) return "the file is cut short";
    if (sum_of(small_.data(), small_.size()) != header.small_sum) return "the file is damaged";
    saving_ = false, taken_ = 0;
    small_parts();
    if (failed_ || taken_ != small_.size()) return "the file is damaged";
    std::vector<Piece> pieces = cut();
    if (header_of(pieces).pieces != header.pieces) return "the file is of another model";
    std::vector<uint64_t> sums(pieces.size());
    if (!read_at(reinterpret_cast<char *>(sums.data()), sums.size() * sizeof(uint64_t), sums_at()))
      return "the file is cut short";
    if (sum_of(reinterpret_cast<const char *>(sums.data()), sums.size() * sizeof(uint64_t)) != header.sums_sum)
      return "the file is damaged";
    each_piece(pieces, [&](Piece &piece) {
      for (size_t done = 0; done < piece.bytes; done += kAtOnce) {  // summed while it is near
        const size_t some = std::min(kAtOnce, piece.bytes - done);
        if (!read_at(piece.data + done, some, piece.at + done)) return false;
        piece.sum.add(piece.data + done, some);
      }
      return piece.sum.value() == sums[&piece - pieces.data()];
    });
    return failed_ ? "the file is damaged" : nullptr;
  }

 private:
  static constexpr uint64_t kMagic = 0x316b636150736448u;
  static constexpr size_t kAtOnce = 1 << 18, kPiece = 16 << 20, kMostSmall = size_t{1} << 32;
  static constexpr int64_t kSmallAt = 4096;

  struct Header {
    uint64_t magic, small_bytes, small_sum, pieces, sums_sum;
  };
  struct Piece {
    char *data;
    size_t bytes;
    int64_t at;
    Sum sum;
  };

  // Takes the parts of the model that are not streams, in one order.
  void small_parts() {
    for (PackedLinear *linear : m_.linears()) take_linear(*linear);
    take_linear(m_.screen.linear);
    take(m_.screen.radii), take_plain(m_.screen.reach);
    for (DecoderLayer &layer : m_.layers) {
      for (Norm &norm : layer.norms) take_norm(norm);
      take(layer.sinks);
      for (std::vector<float> &constant : layer.constants) take(constant);
      if (layer.experts) take(layer.experts->correction);
    }
    for (std::vector<float> &end : m_.ends) take(end);
    take_norm(m_.final_norm), take_norm(m_.feature_norm), take_norm(m_.embedding_norm), take_norm(m_.inputs.norm);
    uint64_t parts = m_.part_norms.size();
    take_plain(parts);
    if (parts > small_.size()) failed_ = true;
    if (failed_) return;
    m_.part_norms.resize(parts);
    for (Norm &norm : m_.part_norms) take_norm(norm);
    take(m_.learned);
    HeadstartRows &rows = m_.embedding.rows();
    take_plain(rows.kind), take_plain(rows.rows), take_plain(rows.row_bytes);
    if (saving_ || failed_) return;
    const size_t bytes = static_cast<size_t>(rows.rows) * rows.row_bytes;
    if (rows.rows != m_.shape.tokens || rows.row_bytes < 0 || bytes > kMostSmall * 16) {
      failed_ = true;
      return;
    }
    if (rows.kind == EmbeddingTable::kShared) {
      failed_ |= !has_rows(m_.head) || m_.head.outputs != rows.rows;
      m_.embedding.share(m_.head);
      return;
    }
    m_.embedding.kept() = HugeBuffer(bytes);
    rows.data = m_.embedding.kept().data(), rows.order = nullptr;
  }
  void take_linear(PackedLinear &linear) {
    take(linear.bias), take(linear.scales), take(linear.column_sums), take(linear.codes), take(linear.listed);
    take_plain(linear.loss);
  }
  void take_norm(Norm &norm) { take(norm.weight), take(norm.bias); }
  template <class T>
  void take(std::vector<T> &values) {
    uint64_t count = values.size();
    take_plain(count);
    if (failed_ || count > small_.size() / sizeof(T) + 1) {
      failed_ |= !saving_;
      if (failed_) return;
    }
    values.resize(count);
    take_bytes(reinterpret_cast<char *>(values.data()), count * sizeof(T));
  }
  template <class T>
  void take_plain(T &value) {
    static_assert(std::is_trivially_copyable<T>::value, "bytes are all of it");
    take_bytes(reinterpret_cast<char *>(&value), sizeof value);
  }
  void take_bytes(char *data, size_t bytes) {
    if (saving_) {
      small_.insert(small_.end(), data, data + bytes);
    } else if (failed_ || bytes > small_.size() - taken_) {
      failed_ = true;
    } else {
      if (bytes) std::memcpy(data, small_.data() + taken_, bytes);
      taken_ += bytes;
    }
  }

  // The pieces of all streams, and where they stand in the file.
  std::vector<Piece> cut() {
    std::vector<HugeBuffer *> buffers;
    for (auto *all : {&m_.streams, &m_.screen_streams})
      for (HugeBuffer &stream : *all) buffers.push_back(&stream);
    buffers.push_back(&m_.embedding.kept());
    std::vector<Piece> pieces;
    for (HugeBuffer *buffer : buffers)
      for (size_t at = 0; at < buffer->size(); at += kPiece)
        pieces.push_back({buffer->data() + at, std::min(kPiece, buffer->size() - at), 0, {}});
    int64_t at = sums_at() + static_cast<int64_t>(pieces.size() * sizeof(uint64_t));
    for (Piece &piece : pieces) at = (at + 4095) / 4096 * 4096, piece.at = at, at += static_cast<int64_t>(piece.bytes);
    return pieces;
  }
  int64_t sums_at() const { return kSmallAt + static_cast<int64_t>((small_.size() + 7) / 8 * 8); }
  Header header_of(const std::vector<Piece> &pieces) const { return {kMagic, small_.size(), 0, pieces.size(), 0}; }

  template <class Work>
  void each_piece(std::vector<Piece> &pieces, Work &&work) {
    std::atomic<bool> failed{false};
#pragma omp parallel for num_threads(m_.shape.threads) schedule(dynamic)
    for (size_t i = 0; i < pieces.size(); ++i)
      if (!failed && !work(pieces[i])) failed = true;
    failed_ |= failed;
  }

  static uint64_t sum_of(const char *data, size_t bytes) {
    Sum sum;
    sum.add(data, bytes);
    return sum.value();
  }
  static std::vector<uint64_t> sums_of(const std::vector<Piece> &pieces) {
    std::vector<uint64_t> sums;
    for (const Piece &piece : pieces) sums.push_back(piece.sum.value());
    return sums;
  }

  bool write_at(const char *data, size_t bytes, int64_t at) const {
    while (bytes > 0) {
      const ssize_t done = pwrite(fd_, data, bytes, start_ + at);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return false;
      data += done, bytes -= done, at += done;
    }
    return true;
  }
  bool read_at(char *data, size_t bytes, int64_t at) const {
    while (bytes > 0) {
      const ssize_t done = pread(fd_, data, bytes, start_ + at);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return false;
      data += done, bytes -= done, at += done;
    }
    return true;
  }

  Decoder &m_;
  const int fd_;
  const int64_t start_;  // of the file's part that is this one's
  bool saving_ = false, failed_ = false;
  std::vector<char> small_;
  size_t taken_ = 0;
};
