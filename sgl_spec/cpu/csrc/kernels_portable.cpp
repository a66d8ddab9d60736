// Any machine: the compiler vectorises for its baseline (SSE2, NEON).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels.h"

#define SIMD_PORTABLE
#include "simd.h"
#include "linear_impl.h"
#include "attend_impl.h"
#include "rows_impl.h"
#include "table.h"

namespace sgl_spec {
const Kernels* kernels_portable() { static const Kernels table = make_table("portable"); return &table; }
}  // namespace sgl_spec
