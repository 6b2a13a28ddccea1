// The mixers of a panel that keep states, and their states.
#pragma once
#include <vector>

#include "short_convolution.h"

class StateMixers {
 public:
  explicit StateMixers(const Decoder &model) : m_(model) {}

  // Null, or what is wrong with the pass.
  const char *begin_pass(const HeadstartPass &pass, const StateStore &store) {
    store_ = &store;
    return layout_.build(pass, store.slots());
  }
  void begin_panel(int first, int rows) {
    layout_.begin_panel(first, rows);
    while (static_cast<int>(spares_.size()) < layout_.spares()) spares_.emplace_back(store_->slot_bytes());
  }

  // One thread's part of a layer between its projections. What it leaves in `rows.out` is read behind a barrier.
  void run(const DecoderLayer &layer, int index, const MixerRows &rows, int thread) const {
    const LayerStates states{layout_, store_->shape(index), *store_, spares_, store_->begin(index)};
    switch (static_cast<Mixer>(layer.mixer)) {
      case Mixer::convolution:
        run_short_convolution(layer, states, rows, thread, m_.shape.threads);
        break;
      default:
        break;
    }
  }

 private:
  const Decoder &m_;
  const StateStore *store_ = nullptr;
  StateLayout layout_;
  std::vector<HugeBuffer> spares_;  // slots for states that outlive a panel, or a row, and no longer than a pass
};
