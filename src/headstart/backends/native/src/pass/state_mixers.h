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
    for (const StateShape &shape : m_.kept_states())
      stride_ = std::max<size_t>(stride_, shape.journal_size), unit_ = std::max<size_t>(unit_, shape.unit_size);
    if (m_.shape.mamba.inner) mamba_ = std::make_unique<Mamba>(m_);
    if (m_.shape.delta.rank) delta_ups_ = std::make_unique<DeltaUps>(m_);
    stride_ += 16;
    entering_ = AlignedBuffer(kPanelRows * stride_ * sizeof(float));
    copies_.resize(m_.shape.threads);
  }

  // Null, or what is wrong with the pass.
  const char *begin_pass(const HeadstartPass &pass, const StateStore &store) {
    store_ = &store;
    return layout_.build(pass, store);
  }
  void begin_panel(int first, int rows) {
    layout_.begin_panel(first, rows);
    if (layout_.copies() <= most_copies_) return;
    most_copies_ = layout_.copies();
    for (AlignedBuffer &of_thread : copies_) of_thread = AlignedBuffer(most_copies_ * unit_ * sizeof(float));
  }
  void end_panel() { layout_.end_panel(); }

  // One thread's part of a layer between its projections; `meet()` is a barrier. What it leaves in `rows.out` is read
  // behind another one.
  template <class Meet>
  void run(const DecoderLayer &layer, int index, const MixerRows &rows, int thread, ReadAhead &ahead, PairDeal &deal,
           Meet &&meet) const {
    const int threads = m_.shape.threads;
    const LayerStates states{layout_, *store_, index, store_->shape(index), entering_.as<float>(), stride_};
    float *const copies = copies_[thread].as<float>();
    switch (static_cast<Mixer>(layer.mixer)) {
      case Mixer::convolution:
        run_short_convolution(layer, states, rows, thread, threads);
        break;
      case Mixer::delta:
        GatedDelta(m_.shape.delta, layer, states, rows, copies, thread, threads)
            .run(
                meet, [&] { delta_ups_->pack(layer, states, rows, thread); },
                [&] { delta_ups_->raise(layer, states, rows, thread, ahead, deal, meet); });
        break;
      case Mixer::mamba:
        mamba_->run(layer, states, rows, copies, thread, ahead, deal, meet);
        break;
      case Mixer::mamba2:
      case Mixer::attention_mamba2:
        Mamba2(m_.shape.mamba2, layer, states, rows, copies, thread, threads).run(meet);
        break;
      default:
        break;
    }
  }

 private:
  const Decoder &m_;
  const StateStore *store_ = nullptr;
  StateLayout layout_;
  AlignedBuffer entering_;  // [panel row][stride_] where the journal takes nothing down
  size_t stride_ = 0, unit_ = 0;
  int most_copies_ = 0;
  std::vector<AlignedBuffer> copies_;    // [thread]
  std::unique_ptr<Mamba> mamba_;         // null where the model has none
  std::unique_ptr<DeltaUps> delta_ups_;  // null where there is no rank
};
