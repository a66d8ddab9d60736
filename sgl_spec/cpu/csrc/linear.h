// A linear layer whose weights were repacked once.
#pragma once
#include <memory>
#include <vector>

#include "kernels.h"

namespace sgl_spec {

class PackedLinear {
 public:
  // weight: [n, k] row-major, float32, or bfloat16 when `weight_is_bf16`; bias: [n] float32 or null. Both are
  // copied. Throws std::invalid_argument for an unknown instruction set.
  PackedLinear(const void* weight, bool weight_is_bf16, int64_t n, int64_t k, const float* bias, Storage storage,
               const std::string& isa);

  // y[rows, ldy] = x[rows, ldx] W^T + bias, float32. Thread-safe; threads as in pool.h.
  void forward(const float* x, int64_t ldx, int64_t rows, float* y, int64_t ldy) const;

  // The outputs of one panel for one row x [k], at their places in y [n]: the same bits as `forward`'s.
  void panel(int64_t panel, const float* x, float* y) const;

  // Writes weight row i [k] as float32: an embedding lookup in a tied head.
  void row(int64_t i, float* out) const;

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  int64_t memory_bytes() const { return bytes_ + static_cast<int64_t>((scale_.size() + bias_.size()) * sizeof(float)); }
  const char* isa() const { return kernels_->name; }
  const Kernels& kernels() const { return *kernels_; }
  int64_t panel_width() const { return kernels_->panel_width[static_cast<int>(storage_)]; }
  const std::vector<float>& scale() const { return scale_; }  // [n] with int8, else empty

 private:
  const Kernels* kernels_;
  Storage storage_;
  int64_t n_, k_, panels_, bytes_;
  std::shared_ptr<void> packed_;
  std::vector<float> scale_, bias_;
};

}  // namespace sgl_spec
