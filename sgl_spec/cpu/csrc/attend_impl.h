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

// Asks for a row of `dim` floats: slots lie anywhere in the pool, so the hardware cannot guess the next one.
INLINE void fetch_row(const float* row, int64_t dim) {
  for (int64_t d = 0; d < dim; d += 16) prefetch(row + d);
}

// Scores of keys [0, count) for H query heads: s[h][key] = q_h . k_key, four keys at a time. `fetch` (or null) are
// rows to ask for meanwhile, one per key.
template <int H>
INLINE void scores(const float* q, int64_t dim, const float* const* keys, int count, float (*s)[kKeys],
                   const float* const* fetch, int64_t fetch_dim) {
  for (int j = 0; j < count; j += 4) {
    if (fetch)
      for (int i = j; i < j + 4 && i < count; ++i) fetch_row(fetch[i], fetch_dim);
    const float* k[4];
    for (int i = 0; i < 4; ++i) k[i] = keys[j + i < count ? j + i : count - 1];
    V acc[H][4];
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) acc[h][i] = v_zero();
    for (int64_t d = 0; d < dim; d += kW) {
      V qv[H];  // 12 sums, 3 queries and 1 key fill the 16 registers of AVX2
#pragma GCC unroll 4
      for (int h = 0; h < H; ++h) qv[h] = v_load(q + h * dim + d);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        V key = v_load(k[i] + d);
#pragma GCC unroll 4
        for (int h = 0; h < H; ++h) acc[h][i] = v_fma(qv[h], key, acc[h][i]);
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) v_sum4(acc[h][0], acc[h][1], acc[h][2], acc[h][3], s[h] + j);
  }
}

// out[h] = out[h] * shrink[h] + sum over keys of p[h][key] * v_key, for Vecs vectors of the value.
template <int H, int Vecs>
INLINE void weigh(float* out, int64_t v_dim, const float* const* values, int64_t d, int from, int count,
                  const float (*p)[kKeys], const float* shrink, const float* const* fetch, int64_t fetch_dim) {
  V acc[H][Vecs];
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h)
#pragma GCC unroll 4
    for (int i = 0; i < Vecs; ++i) acc[h][i] = v_mul(v_load(out + h * v_dim + d + i * kW), v_set(shrink[h]));
  for (int j = from; j < count; ++j) {
    if (fetch) fetch_row(fetch[j], fetch_dim);
    V weight[H];
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) weight[h] = v_set(p[h][j]);
#pragma GCC unroll 4
    for (int i = 0; i < Vecs; ++i) {
      V value = v_load(values[j] + d + i * kW);
#pragma GCC unroll 4
      for (int h = 0; h < H; ++h) acc[h][i] = v_fma(weight[h], value, acc[h][i]);
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
  const V scale = v_set(a.scale);
  V top = v_set(most);
  for (int j = 0; j < from; ++j) s[j] = -INFINITY;
  for (int j = count; j < kKeys; ++j) s[j] = -INFINITY;
  for (int j = 0; j < kKeys; j += kW) v_store(s + j, v_mul(v_load(s + j), scale));
  if (a.cap > 0.0f)
    for (int j = from; j < count; ++j) s[j] = a.cap * std::tanh(s[j] / a.cap);
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

// Which keys of the block that starts at `block` the token t sees: [from, to), empty where to <= from.
struct Seen {
  int from, to;
};
INLINE Seen seen(const AttendArgs& a, int64_t t, int64_t block) {
  const int64_t len = a.kv_len[t], first = a.window >= 0 && len > a.window ? len - a.window : 0;
  const int64_t from = first > block ? first - block : 0, to = len - block < kKeys ? len - block : kKeys;
  return {static_cast<int>(from < kKeys ? from : kKeys), static_cast<int>(to > 0 ? to : 0)};
}

constexpr int kMostHeads = 64;

// Query heads [head, head + H) of tokens [begin, end) against one block: first all scores, while the keys are in L1,
// then all sums of values. The first token that sees the block asks for what comes next: the values, the next keys.
template <int H>
__attribute__((noinline)) void attend_block(const AttendArgs& a, int64_t begin, int64_t end, int64_t head, int64_t block,
                                            Soft (*soft)[kMostHeads], const float* const* keys,
                                            const float* const* values, const float* const* next_keys) {
  float s[kAttendTokens][H][kKeys];  // what `scores` leaves alone is set by `soften`
  float shrink[kAttendTokens][H];
  const int64_t in_group = head % (a.heads / a.kv_heads);
  bool first = true;
  for (int64_t t = begin; t < end; ++t) {
    const Seen keys_of = seen(a, t, block);
    if (keys_of.to <= keys_of.from) continue;
    float(*mine)[kKeys] = s[t - begin];
    scores<H>(a.q + t * a.ldq + head * a.dim, a.dim, keys, keys_of.to, mine, first && next_keys ? values : nullptr, a.v_dim);
    for (int h = 0; h < H; ++h)
      shrink[t - begin][h] = soften(mine[h], keys_of.from, keys_of.to, a, soft[t - begin] + in_group + h);
    first = false;
  }
  for (int64_t t = begin; t < end; ++t) {
    const Seen keys_of = seen(a, t, block);
    if (keys_of.to <= keys_of.from) continue;
    float* out = a.out + (t * a.heads + head) * a.v_dim;
    int64_t d = 0;
    for (; d + 4 * kW <= a.v_dim; d += 4 * kW) {
      weigh<H, 4>(out, a.v_dim, values, d, keys_of.from, keys_of.to, s[t - begin], shrink[t - begin], next_keys, a.dim);
      next_keys = nullptr;
    }
    for (; d < a.v_dim; d += kW)
      weigh<H, 1>(out, a.v_dim, values, d, keys_of.from, keys_of.to, s[t - begin], shrink[t - begin], nullptr, 0);
  }
}

void attend(const AttendArgs& a, int64_t begin, int64_t end, int64_t kv_head) {
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
  const float *keys[2][kKeys], *values[2][kKeys];  // of this block and of the next one
  const auto locate = [&](int64_t block, int which) {
    for (int64_t j = 0; j < kKeys; ++j) {
      const int64_t key = block + j < longest ? block + j : longest - 1;
      const int64_t at = static_cast<int64_t>(slots[key]) * a.kv_heads + kv_head;
      keys[which][j] = a.k_buffer + at * a.dim;
      values[which][j] = a.v_buffer + at * a.v_dim;
    }
  };
  int now = 0;
  locate(start / kKeys * kKeys, now);
  for (int64_t block = start / kKeys * kKeys; block < longest; block += kKeys, now = 1 - now) {
    locate(block + kKeys, 1 - now);
    const float* const* fetch = keys[1 - now];
    for (int64_t h = 0; h < group; h += 3) {
      const int64_t head = kv_head * group + h;
      if (group - h == 1) attend_block<1>(a, begin, end, head, block, soft, keys[now], values[now], fetch);
      else if (group - h == 2) attend_block<2>(a, begin, end, head, block, soft, keys[now], values[now], fetch);
      else attend_block<3>(a, begin, end, head, block, soft, keys[now], values[now], fetch);
      fetch = nullptr;
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
