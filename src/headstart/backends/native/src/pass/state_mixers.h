// The mixers of a panel that keep states, and their states.
#pragma once
#include <vector>

#include "pass/gated_delta.h"
#include "pass/mamba.h"
#include "pass/mamba2.h"
#include "pass/output_head.h"
#include "pass/short_convolution.h"

class StateMixers {
 public:
  explicit StateMixers(const Decoder &model) : m_(model) {
    size_t unit = 0;
    for (const StateShape &shape : m_.kept_states())
      if (shape.units)
        stride_ = std::max<size_t>(stride_, shape.channels), unit = std::max<size_t>(unit, shape.unit_size);
    if (stride_)
      stride_ += 16 + std::max({GatedDelta::besides(m_.shape.delta), Mamba::besides(m_.shape.mamba),
                                Mamba2::besides(m_.shape.mamba2)});
    if (m_.shape.mamba.inner) mamba_ = std::make_unique<Mamba>(m_);
    if (stride_) convolved_ = AlignedBuffer(kPanelRows * stride_ * sizeof(float));
    for (int t = 0; t < m_.shape.threads; ++t) running_.emplace_back((unit + 16) * sizeof(float));
  }

  // Null, or what is wrong with the pass.
  const char *begin_pass(const HeadstartPass &pass, const StateStore &store) {
    store_ = &store;
    return layout_.build(pass, store.slots());
  }
  void begin_panel(int first, int rows) {
    layout_.begin_panel(first, rows);
    while (static_cast<int>(spares_.size()) < layout_.spares()) spares_.emplace_back(store_->slot_bytes());
  }

  // One thread's part of a layer between its projections; `meet()` is a barrier. What it leaves in `rows.out` is read
  // behind another one.
  template <class Meet>
  void run(const DecoderLayer &layer, int index, const MixerRows &rows, int thread, ReadAhead &ahead, PairDeal &deal,
           Meet &&meet) const {
    const int threads = m_.shape.threads;
    const LayerStates states{layout_, store_->shape(index), *store_, spares_, store_->begin(index)};
    const MixerScratch scratch{convolved_.as<float>(), stride_, running_[thread].as<float>()};
    switch (static_cast<Mixer>(layer.mixer)) {
      case Mixer::convolution:
        run_short_convolution(layer, states, rows, thread, threads);
        break;
      case Mixer::delta:
        GatedDelta(m_.shape.delta, layer, states, rows, scratch, thread, threads).run(meet);
        break;
      case Mixer::mamba:
        mamba_->run(layer, states, rows, scratch, thread, ahead, deal, meet);
        break;
      case Mixer::mamba2:
      case Mixer::attention_mamba2:
        Mamba2(m_.shape.mamba2, layer, states, rows, scratch, thread, threads).run(meet);
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
  AlignedBuffer convolved_;
  size_t stride_ = 0;
  std::vector<AlignedBuffer> running_;  // [thread]
  std::unique_ptr<Mamba> mamba_;        // null where the model has none
};
