// One pass of the decoder over the rows of many sequences.
//
// The team runs the same sequence of phases; every phase is cut by columns, rows or heads, and a barrier ends it where
// the next one reads what other threads wrote. How the work is cut never changes the arithmetic of a row.
#pragma once
#include "pass/worker.h"

class PassRunner {
 public:
  explicit PassRunner(Decoder &model) : panel_(model) {}

  // Null on success, else what is wrong with the pass; then nothing has been written.
  const char *run(const Cache &cache, const HeadstartPass &pass) {
    if (const char *error = panel_.begin_pass(cache, pass)) return error;
    const int threads = panel_.model.shape.threads;
    while (panel_.end() < pass.rows) {
      panel_.begin_panel();
      bool complete = true;
#pragma omp parallel num_threads(threads)
      {
        if (omp_get_num_threads() == threads) {
          UnitScope scope;
          Worker(panel_, omp_get_thread_num()).run();
        } else {
          complete = false;
        }
      }
      if (!complete) return "OpenMP gave fewer threads than the backend was built for";
      panel_.head->end_panel();
      if (panel_.states) panel_.states->end_panel();
    }
    if (pass.experts) *pass.experts = panel_.experts ? panel_.experts->called(pass.layers) : 0.0;
    return nullptr;
  }

 private:
  Panel panel_;
};
