#include "linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "memory.h"
#include "pool.h"

namespace sgl_spec {

namespace {

constexpr int64_t kRowBlockBytes = int64_t{384} << 10;  // of x: stays in L2 while all the weights pass by

float from_bf16(uint16_t v) {
  uint32_t bits = static_cast<uint32_t>(v) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// Round to nearest, ties to even; a NaN stays a NaN.
uint16_t to_bf16(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if (std::isnan(f)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Symmetric, one scale per output. A row that holds a NaN or an infinity gets a NaN scale: all of its results
// are NaN, instead of a wrong number.
float int8_scale(const float* row, int64_t k) {
  float most = 0.0f;
  for (int64_t i = 0; i < k; ++i) {
    if (!std::isfinite(row[i])) return std::nanf("");
    most = std::max(most, std::fabs(row[i]));
  }
  return most / 127.0f;
}

int8_t to_int8(float v, float scale) {
  if (!(scale > 0.0f)) return 0;
  return static_cast<int8_t>(std::lrintf(std::min(127.0f, std::max(-127.0f, v / scale))));
}

// Scratch of this thread; each `Slot` is its own buffer.
template <int Slot>
float* scratch(int64_t floats) {
  thread_local std::vector<float> buffer;
  if (static_cast<int64_t>(buffer.size()) < floats) buffer.resize(static_cast<std::size_t>(floats));
  return buffer.data();
}

}  // namespace

PackedLinear::PackedLinear(const void* weight, bool weight_is_bf16, int64_t n, int64_t k, const float* bias,
                           Storage storage, const std::string& isa)
    : kernels_(&kernels_for(isa)), storage_(storage), n_(n), k_(k) {
  const int which = static_cast<int>(storage);
  const int64_t width = kernels_->panel_width[which];
  const int64_t item = storage == Storage::kFp32 ? 4 : storage == Storage::kBf16 ? 2 : 1;
  panels_ = (n + width - 1) / width;
  bytes_ = panels_ * width * k * item;
  packed_ = huge_alloc(static_cast<std::size_t>(std::max<int64_t>(bytes_, 1)));
  if (bias) bias_.assign(bias, bias + n);
  if (storage == Storage::kInt8) scale_.assign(static_cast<std::size_t>(n), 0.0f);
  std::vector<float> rows(static_cast<std::size_t>(width * k));  // of one panel
  for (int64_t first = 0; first < n; first += width) {
    const int64_t count = std::min(width, n - first);
    if (weight_is_bf16) {
      const auto* src = static_cast<const uint16_t*>(weight) + first * k;
      for (int64_t at = 0; at < count * k; ++at) rows[at] = from_bf16(src[at]);
    } else {
      std::memcpy(rows.data(), static_cast<const float*>(weight) + first * k, count * k * sizeof(float));
    }
    // The panel is written from front to back; what it has beyond n outputs stays zero.
    const auto interleave = [&](auto* out, const auto& stored) {
      for (int64_t j = 0; j < k; ++j)
        for (int64_t i = 0; i < count; ++i) out[first * k + j * width + i] = stored(i, rows[i * k + j]);
    };
    if (storage == Storage::kFp32) {
      interleave(static_cast<float*>(packed_.get()), [](int64_t, float v) { return v; });
    } else if (storage == Storage::kBf16) {
      interleave(static_cast<uint16_t*>(packed_.get()), [](int64_t, float v) { return to_bf16(v); });
    } else {
      for (int64_t i = 0; i < count; ++i) scale_[first + i] = int8_scale(rows.data() + i * k, k);
      interleave(static_cast<int8_t*>(packed_.get()), [&](int64_t i, float v) { return to_int8(v, scale_[first + i]); });
    }
  }
}

void PackedLinear::forward(const float* x, int64_t ldx, int64_t rows, float* y, int64_t ldy) const {
  if (rows <= 0 || n_ == 0) return;
  if (k_ == 0) {
    for (int64_t m = 0; m < rows; ++m)
      for (int64_t i = 0; i < n_; ++i) y[m * ldy + i] = bias_.empty() ? 0.0f : bias_[i];
    return;
  }
  const int64_t tile = kernels_->tile_rows;
  const int64_t fit = kRowBlockBytes / (k_ * 4) / tile * tile;
  const int64_t block = std::max<int64_t>(fit, tile * 8);
  float* xt = scratch<0>(std::min(rows, block) * k_);
  const int64_t threads = get_threads();
  for (int64_t r0 = 0; r0 < rows; r0 += block) {
    const int64_t here = std::min(block, rows - r0);
    kernels_->pack_rows(x + r0 * ldx, ldx, here, k_, 0, tile_count(here, tile), xt);
    LinearArgs args{packed_.get(), scale_.empty() ? nullptr : scale_.data(), bias_.empty() ? nullptr : bias_.data(),
                    xt, y + r0 * ldy, nullptr, n_, k_, here, ldy, 0, panels_};
    if (threads == 1) {
      args.acc = scratch<1>(here * kGroupOutputs);
      kernels_->linear[static_cast<int>(storage_)](args);
      continue;
    }
    const int64_t step = std::max<int64_t>(12, (panels_ + threads * 4 - 1) / (threads * 4) / 12 * 12);
    parallel((panels_ + step - 1) / step, [&](int64_t i) {
      LinearArgs part = args;
      part.acc = scratch<1>(here * kGroupOutputs);
      part.panel_begin = i * step;
      part.panel_end = std::min(panels_, (i + 1) * step);
      kernels_->linear[static_cast<int>(storage_)](part);
    });
  }
}

void PackedLinear::panel(int64_t panel, const float* x, float* y) const {
  float acc[kGroupOutputs];
  const LinearArgs args{packed_.get(), scale_.empty() ? nullptr : scale_.data(), bias_.empty() ? nullptr : bias_.data(),
                        x, y, acc, n_, k_, 1, n_, panel, panel + 1};
  kernels_->linear[static_cast<int>(storage_)](args);
}

void PackedLinear::row(int64_t i, float* out) const {
  const int64_t width = panel_width();
  const int64_t base = (i / width) * width * k_ + i % width;
  for (int64_t j = 0; j < k_; ++j) {
    const int64_t at = base + j * width;
    if (storage_ == Storage::kFp32) out[j] = static_cast<const float*>(packed_.get())[at];
    else if (storage_ == Storage::kBf16) out[j] = from_bf16(static_cast<const uint16_t*>(packed_.get())[at]);
    else out[j] = static_cast<float>(static_cast<const int8_t*>(packed_.get())[at]) * scale_[i];
  }
}

}  // namespace sgl_spec
