// One vector type per instruction set. The including file defines exactly one of SIMD_AVX512, SIMD_AVX2,
// SIMD_PORTABLE, and puts the matching target pragma *after* its standard headers, so that no inline function
// of the standard library is compiled for an instruction set that the machine may lack.
//
// V holds kW floats. fma(a, b, c) is one rounding where the machine has it (AVX2+FMA, AVX-512, NEON), and two
// elsewhere; within one instruction set every kernel uses this function only, so results repeat bit for bit.
#pragma once

namespace {

#define INLINE static inline __attribute__((always_inline))

#if defined(SIMD_AVX512)

using V = __m512;
constexpr int kW = 16;
INLINE V v_zero() { return _mm512_setzero_ps(); }
INLINE V v_set(float x) { return _mm512_set1_ps(x); }
INLINE V v_load(const float* p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float* p, V a) { _mm512_storeu_ps(p, a); }
INLINE V v_add(V a, V b) { return _mm512_add_ps(a, b); }
INLINE V v_sub(V a, V b) { return _mm512_sub_ps(a, b); }
INLINE V v_mul(V a, V b) { return _mm512_mul_ps(a, b); }
INLINE V v_div(V a, V b) { return _mm512_div_ps(a, b); }
INLINE V v_max(V a, V b) { return _mm512_max_ps(a, b); }
INLINE V v_min(V a, V b) { return _mm512_min_ps(a, b); }
INLINE V v_fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
INLINE V v_round(V a) { return _mm512_roundscale_ps(a, 0); }
INLINE V v_pow2(V n) {  // 2^n for an integral n in [-126, 127]
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
INLINE V v_load_i8(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
INLINE V v_load_bf16(const uint16_t* p) {
  __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}

#elif defined(SIMD_AVX2)

using V = __m256;
constexpr int kW = 8;
INLINE V v_zero() { return _mm256_setzero_ps(); }
INLINE V v_set(float x) { return _mm256_set1_ps(x); }
INLINE V v_load(const float* p) { return _mm256_loadu_ps(p); }
INLINE void v_store(float* p, V a) { _mm256_storeu_ps(p, a); }
INLINE V v_add(V a, V b) { return _mm256_add_ps(a, b); }
INLINE V v_sub(V a, V b) { return _mm256_sub_ps(a, b); }
INLINE V v_mul(V a, V b) { return _mm256_mul_ps(a, b); }
INLINE V v_div(V a, V b) { return _mm256_div_ps(a, b); }
INLINE V v_max(V a, V b) { return _mm256_max_ps(a, b); }
INLINE V v_min(V a, V b) { return _mm256_min_ps(a, b); }
INLINE V v_fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
INLINE V v_round(V a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE V v_pow2(V n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
INLINE V v_load_i8(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
INLINE V v_load_bf16(const uint16_t* p) {
  __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}

#else

// Eight floats as two halves of four: the compiler maps them to whatever the machine has (SSE2, NEON).
struct V {
  float v[8];
};
constexpr int kW = 8;
#define EACH for (int i = 0; i < kW; ++i)
INLINE V v_set(float x) { V r; EACH r.v[i] = x; return r; }
INLINE V v_zero() { return v_set(0.0f); }
INLINE V v_load(const float* p) { V r; EACH r.v[i] = p[i]; return r; }
INLINE void v_store(float* p, V a) { EACH p[i] = a.v[i]; }
INLINE V v_add(V a, V b) { EACH a.v[i] += b.v[i]; return a; }
INLINE V v_sub(V a, V b) { EACH a.v[i] -= b.v[i]; return a; }
INLINE V v_mul(V a, V b) { EACH a.v[i] *= b.v[i]; return a; }
INLINE V v_div(V a, V b) { EACH a.v[i] /= b.v[i]; return a; }
INLINE V v_max(V a, V b) { EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
INLINE V v_min(V a, V b) { EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
#if defined(__ARM_FEATURE_FMA)
INLINE V v_fma(V a, V b, V c) { EACH c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]); return c; }
#else
INLINE V v_fma(V a, V b, V c) { EACH c.v[i] += a.v[i] * b.v[i]; return c; }
#endif
INLINE V v_round(V a) { EACH a.v[i] = __builtin_rintf(a.v[i]); return a; }
INLINE V v_pow2(V n) {
  EACH {
    int32_t bits = (static_cast<int32_t>(n.v[i]) + 127) << 23;
    __builtin_memcpy(&n.v[i], &bits, 4);
  }
  return n;
}
INLINE V v_load_i8(const int8_t* p) { V r; EACH r.v[i] = static_cast<float>(p[i]); return r; }
INLINE V v_load_bf16(const uint16_t* p) {
  V r;
  EACH {
    uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
    __builtin_memcpy(&r.v[i], &bits, 4);
  }
  return r;
}
#undef EACH

#endif

}  // namespace
