// Softmax attention over a paged KV pool, included once per instruction set (after simd.h).
//
// Invariant: what a token gets depends on its query, its keys in order, kv_len and the window only. Keys come in
// blocks of 64 counted from key 0, each block updates the running maximum, sum and weighted values of the online
// softmax (Milakov and Gimelshein 2018), and the arithmetic inside a block is the same whichever other tokens share
// the pass. So decode, verify, chunked prefill and a prefix hit agree bit for bit. Blocks counted from elsewhere, or
// splitting a token's keys over threads, would break it.
#pragma once

namespace {

using sgl_spec::AttendArgs;
using sgl_spec::kAttendTokens;

constexpr int kKeys = 64;

// Scores of keys [0, count) for H query heads: s[h][key] = q_h . k_key, four keys at a time.
template <int H>
INLINE void scores(const float* q, int64_t dim, const float* const* keys, int count, float (*s)[kKeys]) {
  for (int j = 0; j < count; j += 4) {
    const float* k[4];
    for (int i = 0; i < 4; ++i) k[i] = keys[j + i < count ? j + i : count - 1];
    V acc[H][4];
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) acc[h][i] = v_zero();
    for (int64_t d = 0; d < dim; d += kW) {
      V kv[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) kv[i] = v_load(k[i] + d);
#pragma GCC unroll 4
      for (int h = 0; h < H; ++h) {
        V qv = v_load(q + h * dim + d);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) acc[h][i] = v_fma(qv, kv[i], acc[h][i]);
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) v_sum4(acc[h][0], acc[h][1], acc[h][2], acc[h][3], s[h] + j);
  }
}

// out[h] = out[h] * shrink[h] + sum over keys of p[h][key] * v_key, for Vecs vectors of the value.
template <int H, int Vecs>
INLINE void weigh(float* out, int64_t v_dim, const float* const* values, int64_t d, int from, int count,
                  const float (*p)[kKeys], const float* shrink) {
  V acc[H][Vecs];
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h)
#pragma GCC unroll 4
    for (int i = 0; i < Vecs; ++i) acc[h][i] = v_mul(v_load(out + h * v_dim + d + i * kW), v_set(shrink[h]));
  for (int j = from; j < count; ++j) {
    V v[Vecs];
#pragma GCC unroll 4
    for (int i = 0; i < Vecs; ++i) v[i] = v_load(values[j] + d + i * kW);
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      V weight = v_set(p[h][j]);
#pragma GCC unroll 4
      for (int i = 0; i < Vecs; ++i) acc[h][i] = v_fma(weight, v[i], acc[h][i]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h)
#pragma GCC unroll 4
    for (int i = 0; i < Vecs; ++i) v_store(out + h * v_dim + d + i * kW, acc[h][i]);
}

// Running maximum and sum of one query.
struct Soft {
  float most, sum;
};

// Turns the block's scores into weights against the new maximum; returns by how much the old state shrinks.
INLINE float soften(float* s, int from, int count, const AttendArgs& a, Soft* state) {
  float most = state->most;
  for (int j = 0; j < kKeys; ++j) {
    float v = s[j] * a.scale;
    if (a.cap > 0.0f) v = a.cap * std::tanh(v / a.cap);
    s[j] = j >= from && j < count ? v : -INFINITY;
  }
  V top = v_set(most);
  for (int j = 0; j < kKeys; j += kW) top = v_max(v_load(s + j), top);
  float lanes[kW];
  v_store(lanes, top);
  for (float lane : lanes) most = lane > most ? lane : most;
  const V shift = v_set(most);
  V sum = v_zero();
  for (int j = 0; j < kKeys; j += kW) {
    if (j + kW <= from || j >= count) continue;
    V p = v_exp(v_sub(v_load(s + j), shift));
    if (j < from || j + kW > count) {  // keys outside the block weigh nothing
      float part[kW];
      v_store(part, p);
      for (int i = 0; i < kW; ++i)
        if (j + i < from || j + i >= count) part[i] = 0.0f;
      p = v_load(part);
    }
    v_store(s + j, p);
    sum = v_add(sum, p);
  }
  const float shrink = state->most == -INFINITY ? 0.0f : v_sum(v_exp(v_set(state->most - most))) / kW;
  state->most = most;
  state->sum = state->sum * shrink + v_sum(sum);
  return shrink;
}

template <int H>
__attribute__((noinline)) void attend_block(const AttendArgs& a, const float* q, float* out, Soft* soft,
                                            const float* const* keys, const float* const* values, int from, int count) {
  float s[H][kKeys] = {};
  float shrink[H];
  scores<H>(q, a.dim, keys, count, s);
  for (int h = 0; h < H; ++h) shrink[h] = soften(s[h], from, count, a, soft + h);
  int64_t d = 0;
  for (; d + 4 * kW <= a.v_dim; d += 4 * kW) weigh<H, 4>(out, a.v_dim, values, d, from, count, s, shrink);
  for (; d < a.v_dim; d += kW) weigh<H, 1>(out, a.v_dim, values, d, from, count, s, shrink);
}

void attend(const AttendArgs& a, int64_t begin, int64_t end, int64_t kv_head) {
  constexpr int kMostHeads = 64;
  const int64_t group = a.heads / a.kv_heads;
  const int32_t* slots = a.req_to_token + a.row_of_token[begin] * a.columns;
  int64_t longest = 0, start = INT64_MAX;
  Soft soft[kAttendTokens][kMostHeads];
  for (int64_t t = begin; t < end; ++t) {
    const int64_t len = a.kv_len[t];
    const int64_t first = a.window >= 0 && len > a.window ? len - a.window : 0;
    longest = len > longest ? len : longest;
    start = first < start ? first : start;
    float* out = a.out + (t * a.heads + kv_head * group) * a.v_dim;
    std::memset(out, 0, group * a.v_dim * sizeof(float));
    for (int64_t h = 0; h < group; ++h) soft[t - begin][h] = {-INFINITY, 0.0f};
  }
  for (int64_t block = start / kKeys * kKeys; block < longest; block += kKeys) {
    const float *keys[kKeys], *values[kKeys];
    const int here = static_cast<int>(longest - block < kKeys ? longest - block : kKeys);
    for (int j = 0; j < here; ++j) {
      const int64_t at = static_cast<int64_t>(slots[block + j]) * a.kv_heads + kv_head;
      keys[j] = a.k_buffer + at * a.dim;
      values[j] = a.v_buffer + at * a.v_dim;
    }
    for (int64_t t = begin; t < end; ++t) {
      const int64_t len = a.kv_len[t];
      const int64_t first = a.window >= 0 && len > a.window ? len - a.window : 0;
      if (block >= len || block + kKeys <= first) continue;
      const int count = static_cast<int>(len - block < kKeys ? len - block : kKeys);
      const int from = static_cast<int>(first > block ? first - block : 0);
      const float* q = a.q + t * a.ldq + kv_head * group * a.dim;
      float* out = a.out + (t * a.heads + kv_head * group) * a.v_dim;
      for (int64_t h = 0; h < group;) {
        const int64_t heads = group - h < 3 ? group - h : 3;
        const float* qh = q + h * a.dim;
        float* oh = out + h * a.v_dim;
        Soft* state = soft[t - begin] + h;
        if (heads == 3) attend_block<3>(a, qh, oh, state, keys, values, from, count);
        else if (heads == 2) attend_block<2>(a, qh, oh, state, keys, values, from, count);
        else attend_block<1>(a, qh, oh, state, keys, values, from, count);
        h += heads;
      }
    }
  }
  for (int64_t t = begin; t < end; ++t)
    for (int64_t h = 0; h < group; ++h) {
      float* out = a.out + (t * a.heads + kv_head * group + h) * a.v_dim;
      const V sum = v_set(soft[t - begin][h].sum);
      for (int64_t d = 0; d < a.v_dim; d += kW) v_store(out + d, v_div(v_load(out + d), sum));
    }
}

}  // namespace
