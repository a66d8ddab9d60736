// The table of kernels that one instruction set offers; `kernels_for` picks a table at run time.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sgl_spec {

enum class Storage { kFp32 = 0, kBf16 = 1, kInt8 = 2 };

// One call computes panels [panel_begin, panel_end) of y = x W^T for `rows` rows.
struct LinearArgs {
  const void* packed;   // panels of `panel_width` outputs, interleaved along K
  const float* scale;   // [panels * panel_width] for int8, else null
  const float* bias;    // [panels * panel_width] or null
  const float* xt;      // row tiles as `pack_rows` lays them out
  float* y;             // [rows, ldy]
  int64_t n, k, rows, ldy;
  int64_t panel_begin, panel_end;
};

// Attention of single tokens over a paged pool [slots, kv_heads, head_dim], float32; head_dim is a multiple of 16.
struct AttendArgs {
  const float* keys;
  const float* values;
  int64_t query_heads, kv_heads, head_dim;
  int64_t longest;  // stride of a query head's scores
  float scale;
};

struct Kernels {
  const char* name;
  int panel_width[3];  // by Storage
  int tile_rows;       // most rows that one pass over a panel computes
  void (*pack_rows)(const float* x, int64_t ldx, int64_t rows, int64_t k, int64_t begin, int64_t end, float* xt);
  void (*linear[3])(const LinearArgs&);  // by Storage
  void (*rms_norm)(const float* x, const float* w, float eps, int64_t h, float* y);
  void (*add_row)(const float* x, int64_t h, float* y);
  void (*silu_mul)(const float* gate_up, int64_t n, float* out);
  void (*rotate)(float* x, int64_t heads, int64_t dim, const float* cos, const float* sin);
  // Scores: scratch for min(4, query_heads / kv_heads) rows of `longest` floats.
  void (*attend)(const AttendArgs&, const float* q, const int32_t* slots, int64_t length, int64_t kv_head,
                 float* scores, float* out);
};

const Kernels* kernels_avx512();  // null where the compiler has no such target
const Kernels* kernels_avx2();
const Kernels* kernels_portable();

// Names of the instruction sets that this machine can run, best first.
std::vector<std::string> available_isas();
// Empty name: the best one. Throws std::invalid_argument for one that the machine cannot run.
const Kernels& kernels_for(const std::string& isa);

// Rows are split into tiles whose sizes differ by at most one and never exceed `tile_rows`; a tile starts at
// tile_start(t) and is stored as [K][tile size], so that a pass reads one short run of x per k.
inline int64_t tile_count(int64_t rows, int64_t tile_rows) { return (rows + tile_rows - 1) / tile_rows; }
inline int64_t tile_start(int64_t rows, int64_t tiles, int64_t t) {
  int64_t base = rows / tiles, extra = rows % tiles;
  return t * base + (t < extra ? t : extra);
}

}  // namespace sgl_spec
