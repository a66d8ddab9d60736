#include "greedy.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace sgl_spec {

namespace {

constexpr int64_t kMost = 64;  // contenders; where more are that near, the whole head is computed
constexpr double kUnit = 1.0 / (int64_t{1} << 24);  // rounding of one float operation, relative
// Between these the arithmetic of the bounds neither overflows nor loses digits.
constexpr double kSmall = 1e-30, kLarge = 1e15;

}  // namespace

GreedyHead::GreedyHead(const void* weight, bool weight_is_bf16, const PackedLinear& exact, int64_t most_rows)
    : exact_(exact),
      rough_(weight, weight_is_bf16, exact.n(), exact.k(), nullptr, Storage::kInt8, exact.isa()),
      most_rows_(most_rows) {
  const auto sound = [](float s) { return s == 0.0f || (s > kSmall && s < kLarge); };
  const bool all = std::all_of(rough_.scale().begin(), rough_.scale().end(), sound);
  // |w| and |s q| are at most 127 s, so a chain of k fused or unfused steps is off by at most that many roundings of
  // 127 s sqrt(k) |x|, for either output.
  const double k = static_cast<double>(exact.k()), steps = 2.0 * (k + 16.0) * kUnit * 254.0;
  per_scale_ = all ? static_cast<float>(std::sqrt(k) * (0.5 + 1e-3 + steps) * (1.0 + 1e-6)) : -1.0f;
}

void GreedyHead::best(const float* x, int64_t ldx, int64_t rows, int64_t* best) const {
  const int64_t n = exact_.n();
  if (rows > most_rows_) {
    const std::unique_ptr<float[]> all(new float[static_cast<std::size_t>(rows * n)]);
    exact_.forward(x, ldx, rows, all.get(), n);
    for (int64_t r = 0; r < rows; ++r) best[r] = exact_.kernels().argmax(all.get() + r * n, n, nullptr);
    return;
  }
  thread_local std::vector<float> outputs;
  outputs.resize(static_cast<std::size_t>(rows * n));
  if (per_scale_ >= 0.0f) rough_.forward(x, ldx, rows, outputs.data(), n);
  for (int64_t r = 0; r < rows; ++r) best[r] = best_of(x + r * ldx, outputs.data() + r * n);
}

int64_t GreedyHead::best_of(const float* x, float* outputs) const {
  double square = 0.0;
  for (int64_t i = 0; i < exact_.k(); ++i) square += static_cast<double>(x[i]) * x[i];
  const double norm = std::sqrt(square) * (1.0 + 1e-6);
  if (per_scale_ < 0.0f || !(norm < kLarge)) return look_at_all(x, outputs);
  int64_t found[kMost];
  const float scale = static_cast<float>(norm * per_scale_ * (1.0 + 1e-6));
  const int64_t count = exact_.kernels().contenders(outputs, rough_.scale().data(), scale, exact_.n(), kMost, found);
  if (count > kMost) return look_at_all(x, outputs);
  int64_t best = -1, computed = -1;
  for (int64_t c = 0; c < count; ++c) {
    const int64_t i = found[c], panel = i / exact_.panel_width();
    if (panel != computed) exact_.panel(panel, x, outputs);
    computed = panel;
    if (best < 0 || outputs[i] > outputs[best]) best = i;
  }
  return best;
}

int64_t GreedyHead::look_at_all(const float* x, float* outputs) const {
  exact_.forward(x, exact_.k(), 1, outputs, exact_.n());
  return exact_.kernels().argmax(outputs, exact_.n(), nullptr);
}

}  // namespace sgl_spec
