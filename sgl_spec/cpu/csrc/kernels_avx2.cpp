// AVX2 with FMA.
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels.h"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define SIMD_AVX2
#include "simd.h"
#include "linear_impl.h"
#include "attend_impl.h"
#include "rows_impl.h"
#include "table.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif

namespace sgl_spec {
const Kernels* kernels_avx2() { static const Kernels table = make_table("avx2"); return &table; }
}  // namespace sgl_spec
#else
namespace sgl_spec {
const Kernels* kernels_avx2() { return nullptr; }
}  // namespace sgl_spec
#endif
