// What a transformer does to one row besides linear layers. Each function reads and writes one row (or one
// token's heads) alone, in a fixed order of operations: a row's result never depends on the rest of the batch.
#pragma once

namespace {

using sgl_spec::AttendArgs;

// e^x for x <= 0, to about 2 ulp (Cephes expf); -inf gives 0, NaN stays NaN.
INLINE V v_exp(V x) {
  V low = v_max(x, v_set(-87.0f));
  V n = v_round(v_mul(low, v_set(1.44269504088896341f)));
  V r = v_fma(n, v_set(-0.693359375f), low);
  r = v_fma(n, v_set(2.12194440e-4f), r);
  V p = v_set(1.9875691500e-4f);
  p = v_fma(p, r, v_set(1.3981999507e-3f));
  p = v_fma(p, r, v_set(8.3334519073e-3f));
  p = v_fma(p, r, v_set(4.1665795894e-2f));
  p = v_fma(p, r, v_set(1.6666665459e-1f));
  p = v_fma(p, r, v_set(5.0000001201e-1f));
  p = v_add(v_fma(p, v_mul(r, r), r), v_set(1.0f));
  return v_mul(p, v_pow2(n));
}

INLINE float v_sum(V a) {
  float lanes[kW];
  v_store(lanes, a);
  for (int width = kW / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

// y = x / rms(x) * w; h is a multiple of kW or the tail is done lane by lane. x and y may be the same.
void rms_norm(const float* x, const float* w, float eps, int64_t h, float* y) {
  V acc = v_zero();
  int64_t i = 0;
  for (; i + kW <= h; i += kW) {
    V a = v_load(x + i);
    acc = v_fma(a, a, acc);
  }
  float sum = v_sum(acc);
  for (int64_t j = i; j < h; ++j) sum += x[j] * x[j];
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(h) + eps);
  V s = v_set(scale);
  for (i = 0; i + kW <= h; i += kW) v_store(y + i, v_mul(v_mul(v_load(x + i), s), v_load(w + i)));
  for (; i < h; ++i) y[i] = x[i] * scale * w[i];
}

void add_row(const float* x, int64_t h, float* y) {
  int64_t i = 0;
  for (; i + kW <= h; i += kW) v_store(y + i, v_add(v_load(y + i), v_load(x + i)));
  for (; i < h; ++i) y[i] += x[i];
}

// out = silu(gate) * up; gate_up holds both, `n` each.
void silu_mul(const float* gate_up, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + kW <= n; i += kW) {
    V g = v_load(gate_up + i), magnitude = v_max(g, v_sub(v_zero(), g));
    V e = v_exp(v_sub(v_zero(), magnitude));  // e^-|g|: sigmoid without overflow on either side
    V below = v_div(e, v_add(v_set(1.0f), e)), above = v_div(v_set(1.0f), v_add(v_set(1.0f), e));
    float gate[kW], lo[kW], hi[kW];
    v_store(gate, g);
    v_store(lo, below);
    v_store(hi, above);
    for (int j = 0; j < kW; ++j) lo[j] = gate[j] < 0.0f ? lo[j] : hi[j];
    v_store(out + i, v_mul(v_mul(g, v_load(lo)), v_load(gate_up + n + i)));
  }
  for (; i < n; ++i) out[i] = gate_up[i] / (1.0f + std::exp(-gate_up[i])) * gate_up[n + i];
}

// Rotates `heads` heads of one token in place (first half against second half); cos, sin: [dim / 2].
void rotate(float* x, int64_t heads, int64_t dim, const float* cos, const float* sin) {
  const int64_t half = dim / 2;
  for (int64_t head = 0; head < heads; ++head, x += dim)
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[i], b = x[i + half];
      x[i] = a * cos[i] - b * sin[i];
      x[i + half] = b * cos[i] + a * sin[i];
    }
}

constexpr int kGroup = 4;  // query heads that share one pass over the keys

// Query heads [first, first + count) of one token against the slots of its request; count <= kGroup.
void attend_heads(const AttendArgs& a, const float* q, const int32_t* slots, int64_t length, int64_t kv_head, int count,
                  float* scores, float* out) {
  const int64_t dim = a.head_dim, stride = a.kv_heads * dim, offset = kv_head * dim;
  float top[kGroup];
  for (int r = 0; r < count; ++r) top[r] = -INFINITY;
  for (int64_t s = 0; s < length; ++s) {
    const float* key = a.keys + slots[s] * stride + offset;
    V acc[kGroup];
    for (int r = 0; r < count; ++r) acc[r] = v_zero();
    for (int64_t i = 0; i < dim; i += kW) {
      V k = v_load(key + i);
      for (int r = 0; r < count; ++r) acc[r] = v_fma(v_load(q + r * dim + i), k, acc[r]);
    }
    for (int r = 0; r < count; ++r) {
      const float score = v_sum(acc[r]) * a.scale;
      scores[r * a.longest + s] = score;
      top[r] = score > top[r] || score != score ? score : top[r];
    }
  }
  for (int r = 0; r < count; ++r) {
    float* row = scores + r * a.longest;
    int64_t s = 0;
    V sum = v_zero(), most = v_set(top[r]);
    for (; s + kW <= length; s += kW) {
      V e = v_exp(v_sub(v_load(row + s), most));
      v_store(row + s, e);
      sum = v_add(sum, e);
    }
    float total = v_sum(sum);
    for (; s < length; ++s) {
      float lanes[kW] = {row[s] - top[r]};
      v_store(lanes, v_exp(v_load(lanes)));
      total += row[s] = lanes[0];
    }
    const float inverse = 1.0f / total;
    for (s = 0; s < length; ++s) row[s] *= inverse;
  }
  constexpr int kSpan = 2;  // vectors of the output per pass: count * kSpan accumulators stay in registers
  for (int64_t i = 0; i < dim; i += kW * kSpan) {
    const int span = static_cast<int>(std::min<int64_t>(kSpan, (dim - i) / kW));
    V acc[kGroup][kSpan];
    for (int r = 0; r < count; ++r)
      for (int j = 0; j < span; ++j) acc[r][j] = v_zero();
    for (int64_t s = 0; s < length; ++s) {
      const float* value = a.values + slots[s] * stride + offset + i;
      V v[kSpan];
      for (int j = 0; j < span; ++j) v[j] = v_load(value + j * kW);
      for (int r = 0; r < count; ++r) {
        V p = v_set(scores[r * a.longest + s]);
        for (int j = 0; j < span; ++j) acc[r][j] = v_fma(p, v[j], acc[r][j]);
      }
    }
    for (int r = 0; r < count; ++r)
      for (int j = 0; j < span; ++j) v_store(out + r * dim + i + j * kW, acc[r][j]);
  }
}

template <int count>
void attend_fixed(const AttendArgs& a, const float* q, const int32_t* slots, int64_t length, int64_t kv_head,
                  float* scores, float* out) {
  attend_heads(a, q, slots, length, kv_head, count, scores, out);
}

// One token and one key/value head: all query heads that share it.
void attend(const AttendArgs& a, const float* q, const int32_t* slots, int64_t length, int64_t kv_head, float* scores,
            float* out) {
  const int64_t group = a.query_heads / a.kv_heads;
  q += kv_head * group * a.head_dim;
  out += kv_head * group * a.head_dim;
  for (int64_t first = 0; first < group; first += kGroup) {
    const float* at = q + first * a.head_dim;
    float* to = out + first * a.head_dim;
    switch (std::min<int64_t>(kGroup, group - first)) {
      case 1: attend_fixed<1>(a, at, slots, length, kv_head, scores, to); break;
      case 2: attend_fixed<2>(a, at, slots, length, kv_head, scores, to); break;
      case 3: attend_fixed<3>(a, at, slots, length, kv_head, scores, to); break;
      default: attend_fixed<4>(a, at, slots, length, kv_head, scores, to);
    }
  }
}

}  // namespace
