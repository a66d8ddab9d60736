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
  float* acc;           // [rows * kGroupOutputs] of scratch
  int64_t n, k, rows, ldy;
  int64_t panel_begin, panel_end;
};

// Most outputs that one group of panels computes side by side.
constexpr int64_t kGroupOutputs = 64;

// Attention of tokens over the paged pool; see attend_impl.h.
struct AttendArgs {
  const float* q;               // [tokens, ldq], head h at h * dim
  const float* k_buffer;        // [slots, kv_heads, dim]
  const float* v_buffer;        // [slots, kv_heads, v_dim]
  const int32_t* req_to_token;  // [requests, columns]
  const int64_t* row_of_token;  // [tokens]
  const int64_t* kv_len;        // [tokens]: keys that the token sees, itself included
  float* out;                   // [tokens, heads * v_dim]
  int64_t ldq, columns, heads, kv_heads, dim, v_dim, window;  // window < 0: none
  float scale, cap;             // cap > 0: logits become cap * tanh(logit / cap)
};

constexpr int64_t kAttendTokens = 16;  // most tokens of one request that share a pass over the keys

struct Kernels {
  const char* name;
  int panel_width[3];  // by Storage
  int tile_rows;       // most rows that one pass over a panel computes
  void (*pack_rows)(const float* x, int64_t ldx, int64_t rows, int64_t k, int64_t begin, int64_t end, float* xt);
  void (*linear[3])(const LinearArgs&);  // by Storage
  // Tokens [begin, end), all of one request, against one kv head.
  void (*attend)(const AttendArgs&, int64_t begin, int64_t end, int64_t kv_head);
  // One row each. With `add`, x += add first, in place. out may be x.
  void (*rms_norm)(float* x, const float* add, const float* weight, float eps, int64_t n, float* out);
  void (*rotary)(float* head, const float* cos_sin, int64_t rotary_dim);  // cos first, sin second half
  void (*silu_mul)(const float* gate_up, int64_t n, float* out);          // gate [n], up [n]
  int64_t (*argmax)(const float* x, int64_t n, float* probability);       // softmax(x) at the argmax
  // See rows_impl.h.
  int64_t (*contenders)(const float* x, const float* width, float scale, int64_t n, int64_t most, int64_t* found);
};

const Kernels* kernels_avx512();  // null where the compiler has no such target
const Kernels* kernels_avx2();
const Kernels* kernels_portable();

// Names of the instruction sets that this machine can run, best first.
std::vector<std::string> available_isas();
// Sets the meaning of an empty name for later calls; "" restores the best one.
void use_isa(const std::string& isa);
// Empty name: the one of `use_isa`. Throws std::invalid_argument for one that the machine cannot run.
const Kernels& kernels_for(const std::string& isa);

// Rows are split into tiles whose sizes differ by at most one and never exceed `tile_rows`; a tile starts at
// tile_start(t) and is stored as [K][tile size], so that a pass reads one short run of x per k.
inline int64_t tile_count(int64_t rows, int64_t tile_rows) { return (rows + tile_rows - 1) / tile_rows; }
inline int64_t tile_start(int64_t rows, int64_t tiles, int64_t t) {
  int64_t base = rows / tiles, extra = rows % tiles;
  return t * base + (t < extra ? t : extra);
}

}  // namespace sgl_spec
