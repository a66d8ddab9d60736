// y = x W^T for few rows, included once per instruction set (after simd.h).
//
// Invariant: each output is one chain acc = fma(w[n][k], x[m][k], acc) with k ascending from 0, then scale, then
// bias. Neither the number of rows, nor a row's place in the batch, nor the thread count changes the chain, so a
// row's result is the same bit for bit in a batch of any size: a verify pass over K+1 tokens equals K+1 single
// decodes. A second accumulator per output, or a split along K, would break it.
//
// Layout: panels of kW outputs (16 for bf16 and int8) interleaved along K. `Streams` panels are read side by side,
// each stream being one contiguous run of panels (a quarter of the matrix at one row): several long sequential
// streams draw more bandwidth than one, and than several that jump at the end of each panel.
#pragma once

namespace {

using sgl_spec::LinearArgs;

struct Fp32 {
  using T = float;
  static constexpr int kPanel = kW;
  static constexpr bool kConverts = false;
  INLINE V load(const T* p) { return v_load(p); }
};
struct Bf16 {
  using T = uint16_t;
  static constexpr int kPanel = 16;
  static constexpr bool kConverts = false;
  INLINE V load(const T* p) { return v_load_bf16(p); }
};
struct Int8 {
  using T = int8_t;
  static constexpr int kPanel = 16;
  static constexpr bool kConverts = true;
  INLINE V load(const T* p) { return v_load_i8(p); }
};

INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

// Where one tile pass works: k in [k0, k1) of `Streams` panels, for R rows.
struct Pass {
  const char* panel;      // first panel of the group, at k = 0
  int64_t stream_bytes;   // from one stream to the next
  int64_t stream_outputs;
  const float* xt;        // [K][R]
  float* y;               // first row of the tile, first output of the group
  int64_t ldy;
  float* acc;             // [P][R][kW], where the chain waits between two blocks of k
  bool last;              // the chain ends here: write y
  int64_t k0, k1;
  int64_t width;          // outputs of the last stream's panel that exist (a tail panel is partly padding)
  const char* ahead;      // what to prefetch for stream 0 at k0
  int64_t ahead_step;     // bytes that it moves per k
};

template <int R, int P, int Vecs>
INLINE void store_y(const V (&acc)[P][R], const Pass& a) {
  float buffer[kW];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
      float* y = a.y + r * a.ldy + (p / Vecs) * a.stream_outputs + (p % Vecs) * kW;
      const int64_t rest = p / Vecs == P / Vecs - 1 ? a.width - (p % Vecs) * kW : kW;
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
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) acc[p][r] = v_load(a.acc + (p * R + r) * kW);
  }
  const char* w = a.panel + a.k0 * kStep;
  const float* x = a.xt + a.k0 * R;
  auto one_k = [&](int u) __attribute__((always_inline)) {
    V wv[P];
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p)
      wv[p] = S::load(reinterpret_cast<const typename S::T*>(w + (p / kVecs) * a.stream_bytes + u * kStep) + (p % kVecs) * kW);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      V xv = v_set(x[u * R + r]);
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) acc[p][r] = v_fma(wv[p], xv, acc[p][r]);
    }
  };
  int64_t k = a.k0;
  const char* ahead = a.ahead;
  for (; k + kUnroll <= a.k1; k += kUnroll) {
#pragma GCC unroll 16
    for (int u = 0; u < kUnroll; ++u) {
      one_k(u);
#pragma GCC unroll 16
      for (int s = u; s < Streams; s += kUnroll) prefetch(ahead + s * a.stream_bytes);
    }
    w += kUnroll * kStep;
    x += kUnroll * R;
    ahead += kUnroll * a.ahead_step;
  }
  for (; k < a.k1; ++k) {
    one_k(0);
    w += kStep;
    x += R;
  }
  if (a.last) return store_y<R, P, kVecs>(acc, a);
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) v_store(a.acc + (p * R + r) * kW, acc[p][r]);
}

// Panels side by side: as many as the registers allow while every tile still hides the FMA latency. Numbers that are
// converted in several steps leave fewer for the sums.
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
  int s = (S::kConverts ? kRegisters * 2 / 3 : kRegisters) / (rows * vecs);
  return s < 1 ? 1 : s > 4 ? 4 : s;
}

// Bytes ahead of the reading position that are asked for: further costs bandwidth at one row, nearer stalls the
// arithmetic at many (measured on Zen 3).
INLINE int64_t ahead_bytes(int64_t rows) { return rows <= 3 ? 256 : rows == 4 ? 512 : 1024; }

template <class S, int R>
void run_tile(const Pass& a, int streams) {
  constexpr int kMost = streams_for<S>(R);
  if (streams == 1) return tile<S, R, 1>(a);
  if constexpr (kMost > 2) if (streams == kMost) return tile<S, R, kMost>(a);
  if constexpr (kMost > 1) return tile<S, R, 2>(a);
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
  const int64_t blocks = tiles == 1 ? 1 : (a.k * kStep + kBlockBytes - 1) / kBlockBytes;
  const int64_t block = ((a.k + blocks - 1) / blocks + 3) / 4 * 4;
  const int64_t most = streams_for<S>(static_cast<int>(a.rows < kTileRows ? a.rows : kTileRows));
  int64_t streams = most;
  int64_t run = (a.panel_end - a.panel_begin) / most;  // panels of each stream
  for (int64_t panel = a.panel_begin, left = run; panel < a.panel_end; ++panel, --left) {
    if (left == 0) {  // what no longer makes a full set of streams
      panel += (streams - 1) * run;
      if (panel >= a.panel_end) break;
      left = run = a.panel_end - panel;
      streams = 1;
    }
    const char* first = static_cast<const char*>(a.packed) + panel * panel_bytes;
    const int64_t n0 = panel * S::kPanel;
    const int64_t last = n0 + (streams - 1) * run * S::kPanel;
    const int64_t width = a.n - last < S::kPanel ? a.n - last : S::kPanel;
    for (int64_t k0 = 0; k0 < a.k; k0 += block) {
      const int64_t k1 = a.k - k0 < block ? a.k : k0 + block;
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t r0 = sgl_spec::tile_start(a.rows, tiles, t);
        const int64_t rows = sgl_spec::tile_start(a.rows, tiles, t + 1) - r0;
        Pass pass{first, run * panel_bytes, run * S::kPanel, a.xt + r0 * a.k, a.y + r0 * a.ldy + n0, a.ldy,
                  a.acc + r0 * most * S::kPanel, k1 == a.k, k0, k1, width, nullptr, kStep};
        if (tiles == 1) {
          pass.ahead = first + ahead_bytes(rows);
        } else {  // each tile fetches its share of the next block
          pass.ahead_step = (kStep + tiles - 1) / tiles;
          pass.ahead = first + k1 * kStep + t * block * kStep / tiles;
        }
        run_tile_rows<S>(rows, pass, static_cast<int>(streams));
      }
    }
    for (int64_t s = 0; (a.scale || a.bias) && s < streams; ++s) {
      const int64_t from = n0 + s * run * S::kPanel;
      const int64_t count = s == streams - 1 ? width : S::kPanel;
      for (int64_t m = 0; m < a.rows; ++m)
        for (int64_t i = from; i < from + count; ++i) {
          float v = a.y[m * a.ldy + i];
          if (a.scale) v *= a.scale[i];
          if (a.bias) v += a.bias[i];
          a.y[m * a.ldy + i] = v;
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
