// The largest output of a head for each row, exactly, from a quarter of the head's bytes.
#pragma once
#include "linear.h"

namespace sgl_spec {

// Outputs of int8 weights are off by no more than a bound: |w - s q| <= s / 2 for each weight, so by Cauchy and Schwarz
// |w x - s q x| <= (s / 2) sqrt(k) |x|, and rounding adds a little. The largest exact output is among those whose interval
// reaches the best lower end; they are computed as the head itself computes them, bit for bit.
class GreedyHead {
 public:
  // The weight that `exact` packed, in its layout there; `exact` has no bias, and must outlive this. More than `most_rows`
  // rows go through `exact` alone.
  GreedyHead(const void* weight, bool weight_is_bf16, const PackedLinear& exact, int64_t most_rows);

  // best[rows]: the index of the largest exact output, the lowest among equals; NaN are passed over.
  void best(const float* x, int64_t ldx, int64_t rows, int64_t* best) const;

  int64_t memory_bytes() const { return rough_.memory_bytes(); }

 private:
  int64_t best_of(const float* x, float* outputs) const;
  int64_t look_at_all(const float* x, float* outputs) const;

  const PackedLinear& exact_;
  PackedLinear rough_;
  int64_t most_rows_;
  float per_scale_;  // bound on the error of an output, over its scale and |x|; negative: no bound holds
};

}  // namespace sgl_spec
