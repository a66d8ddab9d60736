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
// The sums of four vectors, each in the same fixed order.
INLINE void v_sum4(V a, V b, V c, V d, float* out) {
  auto half = [](V x) __attribute__((always_inline)) {
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  };
  __m256 t = _mm256_hadd_ps(_mm256_hadd_ps(half(a), half(b)), _mm256_hadd_ps(half(c), half(d)));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1)));
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
INLINE void v_sum4(V a, V b, V c, V d, float* out) {
  __m256 t = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1)));
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
INLINE float sum_of(const V& a) {
  return ((a.v[0] + a.v[1]) + (a.v[2] + a.v[3])) + ((a.v[4] + a.v[5]) + (a.v[6] + a.v[7]));
}
INLINE void v_sum4(V a, V b, V c, V d, float* out) {
  out[0] = sum_of(a);
  out[1] = sum_of(b);
  out[2] = sum_of(c);
  out[3] = sum_of(d);
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

INLINE float v_sum(V a) {
  float out[4];
  v_sum4(a, a, a, a, out);
  return out[0];
}

// e^x within 2 ulp for x in [-87, 88], clamped outside; a NaN stays one (max and min return their second operand).
INLINE V v_exp(V x) {
  x = v_min(v_set(88.0f), v_max(v_set(-87.0f), x));
  V n = v_round(v_mul(x, v_set(1.44269504088896341f)));
  V r = v_fma(n, v_set(-0.693359375f), x);
  r = v_fma(n, v_set(2.12194440e-4f), r);
  V p = v_set(1.9875691500e-4f);
  p = v_fma(p, r, v_set(1.3981999507e-3f));
  p = v_fma(p, r, v_set(8.3334519073e-3f));
  p = v_fma(p, r, v_set(4.1665795894e-2f));
  p = v_fma(p, r, v_set(1.6666665459e-1f));
  p = v_fma(p, r, v_set(5.0000001201e-1f));
  p = v_add(v_fma(v_mul(r, r), p, r), v_set(1.0f));
  return v_mul(p, v_pow2(n));
}

// The first `count` floats at p, the rest filled.
INLINE V v_load_part(const float* p, int64_t count, float fill) {
  float buffer[kW];
  for (int i = 0; i < kW; ++i) buffer[i] = i < count ? p[i] : fill;
  return v_load(buffer);
}
INLINE void v_store_part(float* p, V a, int64_t count) {
  float buffer[kW];
  v_store(buffer, a);
  for (int64_t i = 0; i < count; ++i) p[i] = buffer[i];
}

}  // namespace
