// The row-wise operations of a Llama layer, included once per instruction set (after simd.h). Each works on one
// row, so the batch cannot change a result.
#pragma once

namespace {

void rms_norm(float* x, const float* add, const float* weight, float eps, int64_t n, float* out) {
  V squares = v_zero();
  int64_t i = 0;
  for (; i + kW <= n; i += kW) {
    V v = v_load(x + i);
    if (add) v_store(x + i, v = v_add(v, v_load(add + i)));
    squares = v_fma(v, v, squares);
  }
  if (i < n) {
    V v = v_load_part(x + i, n - i, 0.0f);
    if (add) v_store_part(x + i, v = v_add(v, v_load_part(add + i, n - i, 0.0f)), n - i);
    squares = v_fma(v, v, squares);
  }
  const V scale = v_set(1.0f / std::sqrt(v_sum(squares) / static_cast<float>(n) + eps));
  for (i = 0; i + kW <= n; i += kW) v_store(out + i, v_mul(v_mul(v_load(x + i), scale), v_load(weight + i)));
  if (i < n) {
    V v = v_mul(v_mul(v_load_part(x + i, n - i, 0.0f), scale), v_load_part(weight + i, n - i, 0.0f));
    v_store_part(out + i, v, n - i);
  }
}

// GPT-NeoX style: element i turns with element i + rotary_dim / 2.
void rotary(float* head, const float* cos_sin, int64_t rotary_dim) {
  const int64_t half = rotary_dim / 2;
  float* second = head + half;
  const float* sin = cos_sin + half;
  int64_t i = 0;
  for (; i + kW <= half; i += kW) {
    V a = v_load(head + i), b = v_load(second + i), c = v_load(cos_sin + i), s = v_load(sin + i);
    v_store(head + i, v_sub(v_mul(a, c), v_mul(b, s)));
    v_store(second + i, v_add(v_mul(b, c), v_mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = head[i], b = second[i];
    head[i] = a * cos_sin[i] - b * sin[i];
    second[i] = b * cos_sin[i] + a * sin[i];
  }
}

INLINE V silu_times(V gate, V up) {
  const V one = v_set(1.0f);
  return v_mul(v_div(gate, v_add(one, v_exp(v_sub(v_zero(), gate)))), up);
}

void silu_mul(const float* gate_up, int64_t n, float* out) {
  const float* up = gate_up + n;
  int64_t i = 0;
  for (; i + kW <= n; i += kW) v_store(out + i, silu_times(v_load(gate_up + i), v_load(up + i)));
  if (i < n)
    v_store_part(out + i, silu_times(v_load_part(gate_up + i, n - i, 0.0f), v_load_part(up + i, n - i, 0.0f)), n - i);
}

// NaN are passed over.
INLINE float max_of(const float* x, int64_t n) {
  V most[4] = {v_set(-INFINITY), v_set(-INFINITY), v_set(-INFINITY), v_set(-INFINITY)};
  int64_t i = 0;
  for (; i + 4 * kW <= n; i += 4 * kW)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) most[j] = v_max(v_load(x + i + j * kW), most[j]);
  float lanes[kW];
  v_store(lanes, v_max(v_max(most[0], most[1]), v_max(most[2], most[3])));
  float top = -INFINITY;
  for (float lane : lanes) top = lane > top ? lane : top;
  for (; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

// Numbers of which only intervals are known, x[i] - width[i] * scale to x[i] + width[i] * scale, all finite: writes the
// indices of those that may be the largest, ascending, and returns how many; more than `most` are not written.
int64_t contenders(const float* x, const float* width, float scale, int64_t n, int64_t most, int64_t* found) {
  constexpr float kTiny = 1e-24f;  // what underflows counts as equal
  constexpr int64_t kBlock = 64 * kW;
  const auto end = [&](int64_t i, float sign) { return x[i] + sign * (width[i] * scale + kTiny); };
  const auto off = [&](int64_t i) __attribute__((always_inline)) {
    return v_add(v_mul(v_load(width + i), v_set(scale)), v_set(kTiny));
  };
  float least = -INFINITY;  // the largest is at least that
  V low = v_set(-INFINITY);
  int64_t i = 0;
  for (; i + kW <= n; i += kW) low = v_max(v_sub(v_load(x + i), off(i)), low);
  float lanes[kW];
  v_store(lanes, low);
  for (float lane : lanes) least = lane > least ? lane : least;
  for (; i < n; ++i) least = end(i, -1.0f) > least ? end(i, -1.0f) : least;
  int64_t count = 0;
  for (int64_t block = 0; block < n; block += kBlock) {
    const int64_t stop = std::min(block + kBlock, n);
    V high = v_set(-INFINITY);
    for (i = block; i + kW <= stop; i += kW) high = v_max(v_add(v_load(x + i), off(i)), high);
    float top = -INFINITY;
    v_store(lanes, high);
    for (float lane : lanes) top = lane > top ? lane : top;
    for (; i < stop; ++i) top = end(i, 1.0f) > top ? end(i, 1.0f) : top;
    if (top < least) continue;
    for (i = block; i < stop; ++i) {
      if (end(i, 1.0f) < least) continue;
      if (count < most) found[count] = i;
      ++count;
    }
  }
  return count;
}

// The lowest index among equal maxima; NaN are passed over. `probability` may be null.
int64_t argmax(const float* x, int64_t n, float* probability) {
  constexpr int64_t kBlock = 1024;  // only the block that holds the maximum is searched for it
  float top = -INFINITY;
  int64_t best = 0;
  for (int64_t block = 0; block < n; block += kBlock) {
    const float most = max_of(x + block, std::min(kBlock, n - block));
    if (most > top) top = most, best = block;
  }
  while (best < n - 1 && x[best] != top) ++best;
  if (x[best] != top) best = 0;
  if (probability) {
    const V shift = v_set(top);
    V sum = v_zero();
    int64_t i = 0;
    for (; i + kW <= n; i += kW) sum = v_add(sum, v_exp(v_sub(v_load(x + i), shift)));
    float total = v_sum(sum);
    for (; i < n; ++i) total += std::exp(x[i] - top);
    *probability = 1.0f / total;
  }
  return best;
}

}  // namespace
