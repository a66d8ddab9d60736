// y = x W^T for few rows, included once per instruction set (after simd.h).
//
// Invariant: each output is one chain acc = fma(w[n][k], x[m][k], acc) with k ascending from 0, then scale, then
// bias. Neither the number of rows, nor a row's place in the batch, nor the thread count changes the chain, so a
// row's result is the same bit for bit in a batch of any size: a verify pass over K+1 tokens equals K+1 single
// decodes. A second accumulator per output, or a split along K, would break it.
//
// Layout: panels of kW outputs (16 for bf16 and int8) interleaved along K; `Streams` panels are read side by side,
// because several sequential streams draw more bandwidth than one.
#pragma once

namespace {

using sgl_spec::LinearArgs;

struct Fp32 {
  using T = float;
  static constexpr int kPanel = kW;
  INLINE V load(const T* p) { return v_load(p); }
};
struct Bf16 {
  using T = uint16_t;
  static constexpr int kPanel = 16;
  INLINE V load(const T* p) { return v_load_bf16(p); }
};
struct Int8 {
  using T = int8_t;
  static constexpr int kPanel = 16;
  INLINE V load(const T* p) { return v_load_i8(p); }
};

INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

// Where one tile pass works: k in [k0, k1) of `Streams` panels, for R rows.
struct Pass {
  const char* panel;      // first panel of the group, at k = 0
  int64_t panel_bytes;
  const float* xt;        // [K][R]
  float* y;               // first row of the tile, first output of the group
  int64_t ldy;
  int64_t k0, k1;
  int64_t width;          // outputs of the group that exist (a tail panel is partly padding)
  const char* ahead;      // what to prefetch for stream 0 at k0
  int64_t ahead_step;     // bytes that `ahead` moves per k
};

template <int R, int P, class S>
INLINE void load_y(V (&acc)[P][R], const Pass& a) {
  float buffer[kW];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
      const float* y = a.y + r * a.ldy + p * kW;
      int64_t rest = a.width - p * kW;
      if (rest >= kW) {
        acc[p][r] = v_load(y);
      } else {
        for (int i = 0; i < kW; ++i) buffer[i] = i < rest ? y[i] : 0.0f;
        acc[p][r] = v_load(buffer);
      }
    }
}

template <int R, int P>
INLINE void store_y(const V (&acc)[P][R], const Pass& a) {
  float buffer[kW];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
      float* y = a.y + r * a.ldy + p * kW;
      int64_t rest = a.width - p * kW;
      if (rest >= kW) {
        v_store(y, acc[p][r]);
      } else {
        v_store(buffer, acc[p][r]);
        for (int i = 0; i < rest; ++i) y[i] = buffer[i];
      }
    }
}

// One tile pass. P vectors of outputs x R rows stay in registers while k runs over [k0, k1).
template <class S, int R, int Streams>
__attribute__((noinline)) void tile(const Pass& a) {
  constexpr int kVecs = S::kPanel / kW;
  constexpr int P = Streams * kVecs;
  constexpr int64_t kStep = S::kPanel * sizeof(typename S::T);  // bytes per k and stream
  constexpr int kUnroll = kStep >= 64 ? 1 : 64 / kStep;         // one cache line per stream and turn
  V acc[P][R];
  if (a.k0 == 0) {
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) acc[p][r] = v_zero();
  } else {
    load_y<R, P, S>(acc, a);
  }
  const char* w = a.panel + a.k0 * kStep;
  const float* x = a.xt + a.k0 * R;
  const char* ahead = a.ahead;
  auto one_k = [&](int u) __attribute__((always_inline)) {
    V wv[P];
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p)
      wv[p] = S::load(reinterpret_cast<const typename S::T*>(w + (p / kVecs) * a.panel_bytes + u * kStep) + (p % kVecs) * kW);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      V xv = v_set(x[u * R + r]);
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) acc[p][r] = v_fma(wv[p], xv, acc[p][r]);
    }
  };
  int64_t k = a.k0;
  for (; k + kUnroll <= a.k1; k += kUnroll) {
#pragma GCC unroll 16
    for (int s = 0; s < Streams; ++s) prefetch(ahead + s * a.panel_bytes);
#pragma GCC unroll 16
    for (int u = 0; u < kUnroll; ++u) one_k(u);
    w += kUnroll * kStep;
    x += kUnroll * R;
    ahead += kUnroll * a.ahead_step;
  }
  for (; k < a.k1; ++k) {
    one_k(0);
    w += kStep;
    x += R;
  }
  store_y<R, P>(acc, a);
}

// Panels side by side: as many as the registers allow while every tile still hides the FMA latency.
#if defined(SIMD_AVX512)
constexpr int kRegisters = 24;
#elif defined(SIMD_AVX2)
constexpr int kRegisters = 12;
#else
constexpr int kRegisters = 1;
#endif
constexpr int kTileRows = 6;
template <class S>
constexpr int streams_for(int rows) {
  constexpr int vecs = S::kPanel / kW;
  int s = kRegisters / (rows * vecs);
  return s < 1 ? 1 : s > 4 ? 4 : s;
}

// Bytes ahead of the reading position that are asked for: further costs bandwidth at one row, nearer stalls the
// arithmetic at many (measured on Zen 3).
INLINE int64_t ahead_bytes(int64_t rows) { return rows <= 3 ? 256 : rows == 4 ? 1024 : 2048; }

template <class S, int R>
void run_tile(const Pass& a, int streams) {
  constexpr int kMost = streams_for<S>(R);
  if (streams == kMost) return tile<S, R, kMost>(a);
  for (int s = 0; s < streams; ++s) {  // the last panels, fewer than a group
    Pass one = a;
    one.panel += s * a.panel_bytes;
    one.y += s * S::kPanel;
    one.width -= s * S::kPanel;
    one.ahead += s * a.panel_bytes;
    tile<S, R, 1>(one);
  }
}

template <class S>
void run_tile_rows(int64_t rows, const Pass& a, int streams) {
  switch (rows) {
    case 1: return run_tile<S, 1>(a, streams);
    case 2: return run_tile<S, 2>(a, streams);
    case 3: return run_tile<S, 3>(a, streams);
    case 4: return run_tile<S, 4>(a, streams);
    case 5: return run_tile<S, 5>(a, streams);
    case 6: return run_tile<S, 6>(a, streams);
  }
}

constexpr int64_t kBlockBytes = 8192;  // of one panel: the streams of a block fit in L1 beside x

template <class S>
void linear(const LinearArgs& a) {
  constexpr int64_t kStep = S::kPanel * sizeof(typename S::T);
  const int64_t panel_bytes = a.k * kStep;
  const int64_t tiles = sgl_spec::tile_count(a.rows, kTileRows);
  const int64_t most = tiles ? sgl_spec::tile_start(a.rows, tiles, 1) : 0;  // rows of the largest tile
  const int64_t block = tiles == 1 ? a.k : kBlockBytes / kStep;
  int64_t group = streams_for<S>(static_cast<int>(most));
  for (int64_t panel = a.panel_begin; panel < a.panel_end; panel += group) {
    const int64_t streams = a.panel_end - panel < group ? a.panel_end - panel : group;
    const char* first = static_cast<const char*>(a.packed) + panel * panel_bytes;
    const int64_t n0 = panel * S::kPanel;
    const int64_t width = a.n - n0 < streams * S::kPanel ? a.n - n0 : streams * S::kPanel;
    for (int64_t k0 = 0; k0 < a.k; k0 += block) {
      const int64_t k1 = a.k - k0 < block ? a.k : k0 + block;
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t r0 = sgl_spec::tile_start(a.rows, tiles, t);
        const int64_t rows = sgl_spec::tile_start(a.rows, tiles, t + 1) - r0;
        Pass pass{first, panel_bytes, a.xt + r0 * a.k, a.y + r0 * a.ldy + n0, a.ldy, k0, k1, width, nullptr, 0};
        if (tiles == 1) {
          pass.ahead = first + ahead_bytes(rows);
          pass.ahead_step = kStep;
        } else {  // each tile fetches its share of the next block
          pass.ahead = first + k1 * kStep + (k1 - k0) * kStep * t / tiles;
          pass.ahead_step = kStep / tiles;
        }
        run_tile_rows<S>(rows, pass, static_cast<int>(streams));
      }
    }
    if (!a.scale && !a.bias) continue;
    for (int64_t m = 0; m < a.rows; ++m) {
      float* y = a.y + m * a.ldy + n0;
      for (int64_t i = 0; i < width; ++i) {
        float v = y[i];
        if (a.scale) v *= a.scale[n0 + i];
        if (a.bias) v += a.bias[n0 + i];
        y[i] = v;
      }
    }
  }
}

// Copies tiles [begin, end) of x [rows, ldx] to xt as [K][tile size] each.
void pack_rows(const float* x, int64_t ldx, int64_t rows, int64_t k, int64_t begin, int64_t end, float* xt) {
  const int64_t tiles = sgl_spec::tile_count(rows, kTileRows);
  for (int64_t t = begin; t < end; ++t) {
    const int64_t r0 = sgl_spec::tile_start(rows, tiles, t);
    const int64_t size = sgl_spec::tile_start(rows, tiles, t + 1) - r0;
    float* out = xt + r0 * k;
    const float* in = x + r0 * ldx;
    for (int64_t i = 0; i < k; ++i)
      for (int64_t r = 0; r < size; ++r) out[i * size + r] = in[r * ldx + i];
  }
}

}  // namespace
