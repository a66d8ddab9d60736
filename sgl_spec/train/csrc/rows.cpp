// The parts of a Llama forward that no matrix product covers, over M independent rows (tokens).
//
// Activations are feature-major, [features][M]: a weight [out][in] then multiplies them without a transpose.
// Row r belongs to cache slot slot[r] at position pos[r]; it attends to positions 0 .. pos[r] of its slot.
// Keys are kept in blocks of 16 positions, [slot][kv head][T / 16][64][16], so that scores need no horizontal
// sum; values are [slot][kv head][T][64]. T, the capacity of a slot, is a multiple of 16; head_dim is 64.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

typedef float vec __attribute__((vector_size(32), aligned(4)));
static const int D = 64, BLOCK = 16;

static inline vec splat(float a) { return vec{a, a, a, a, a, a, a, a}; }

// e^x to 2 units in the last place for x <= 88; written so that a loop over it is vectorised.
static inline float fast_exp(float x) {
    x = std::max(x, -87.0f);
    float n = __builtin_nearbyintf(x * 1.44269504f);
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f + r * (1.0f + r * (0.5f + r * (0.166666667f + r * (0.0416666667f +
              r * (0.00833333333f + r * 0.00138888889f)))));
    int32_t bits = ((int32_t)n + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, 4);
    return p * scale;
}

extern "C" {

// y = x * rsqrt(mean(x^2) + eps) * weight, per column.
void rms_norm(const float* x, const float* weight, float* y, int64_t width, int64_t M, float eps) {
    std::vector<float> scale(M, 0.0f);
    for (int64_t i = 0; i < width; i++)
        for (int64_t r = 0; r < M; r++) scale[r] += x[i * M + r] * x[i * M + r];
    for (int64_t r = 0; r < M; r++) scale[r] = 1.0f / std::sqrt(scale[r] / width + eps);
    for (int64_t i = 0; i < width; i++)
        for (int64_t r = 0; r < M; r++) y[i * M + r] = x[i * M + r] * scale[r] * weight[i];
}

// out = silu(gate_up[:n]) * gate_up[n:].
void silu_mul(const float* gate_up, float* out, int64_t n, int64_t M) {
    const float* up = gate_up + n * M;
    for (int64_t i = 0; i < n * M; i++) out[i] = gate_up[i] / (1.0f + fast_exp(-gate_up[i])) * up[i];
}

// Rotate q and k in place (split halves; cos, sin: [max position][32]), then write k and v into the cache.
void rotate_and_store(float* qkv, const float* cos_table, const float* sin_table, const int32_t* slot,
                      const int32_t* pos, float* k_cache, float* v_cache, int64_t heads, int64_t kv_heads,
                      int64_t T, int64_t M) {
    for (int64_t h = 0; h < heads + kv_heads; h++)
        for (int64_t d = 0; d < D / 2; d++) {
            float* a = qkv + (h * D + d) * M;
            float* b = a + D / 2 * M;
            for (int64_t r = 0; r < M; r++) {
                float c = cos_table[pos[r] * (D / 2) + d], s = sin_table[pos[r] * (D / 2) + d];
                float low = a[r] * c - b[r] * s;
                b[r] = b[r] * c + a[r] * s;
                a[r] = low;
            }
        }
    const float* k = qkv + heads * D * M;
    const float* v = k + kv_heads * D * M;
    for (int64_t r = 0; r < M; r++)
        for (int64_t g = 0; g < kv_heads; g++) {
            int64_t base = (slot[r] * kv_heads + g) * T * D;
            float* kb = k_cache + base + pos[r] / BLOCK * BLOCK * D + pos[r] % BLOCK;
            float* vb = v_cache + base + pos[r] * D;
            for (int64_t d = 0; d < D; d++) {
                kb[d * BLOCK] = k[(g * D + d) * M + r];
                vb[d] = v[(g * D + d) * M + r];
            }
        }
}
}

// One kv head of one row: G query heads share the keys and values.
template <int G>
static void attend(const float* q, const float* keys, const float* values, int64_t n, float* scores,
                   int64_t stride, float* out) {
    float top[G];
    for (int g = 0; g < G; g++) top[g] = -INFINITY;
    for (int64_t t = 0; t < n; t += BLOCK) {
        const float* block = keys + t * D;
        vec acc[G][2] = {};
        for (int d = 0; d < D; d++) {
            vec k0 = *(const vec*)(block + d * BLOCK), k1 = *(const vec*)(block + d * BLOCK + 8);
            for (int g = 0; g < G; g++) {
                vec s = splat(q[g * D + d]);
                acc[g][0] += s * k0;
                acc[g][1] += s * k1;
            }
        }
        for (int g = 0; g < G; g++) {
            *(vec*)(scores + g * stride + t) = acc[g][0];
            *(vec*)(scores + g * stride + t + 8) = acc[g][1];
        }
    }
    for (int g = 0; g < G; g++) {
        float* s = scores + g * stride;
        for (int64_t t = 0; t < n; t++) top[g] = std::max(top[g], s[t]);
        float sum = 0.0f;
        for (int64_t t = 0; t < n; t++) sum += s[t] = fast_exp(s[t] - top[g]);
        for (int64_t t = 0; t < n; t++) s[t] /= sum;
    }
    for (int half = 0; half < D; half += 32) {
        vec acc[G][4] = {};
        for (int64_t t = 0; t < n; t++) {
            const float* v = values + t * D + half;
            for (int g = 0; g < G; g++) {
                vec p = splat(scores[g * stride + t]);
                for (int j = 0; j < 4; j++) acc[g][j] += p * *(const vec*)(v + 8 * j);
            }
        }
        for (int g = 0; g < G; g++)
            for (int j = 0; j < 4; j++) *(vec*)(out + g * D + half + 8 * j) = acc[g][j];
    }
}

extern "C" {

// out [heads * 64][M] from the rotated q in qkv and the cache.
void attention(const float* qkv, const int32_t* slot, const int32_t* pos, const float* k_cache,
               const float* v_cache, float* out, int64_t heads, int64_t kv_heads, int64_t T, int64_t M) {
    int64_t group = heads / kv_heads;
    std::vector<float> q(group * D), o(group * D), scores(group * T);
    for (int64_t r = 0; r < M; r++)
        for (int64_t g = 0; g < kv_heads; g++) {
            for (int64_t i = 0; i < group * D; i++) q[i] = qkv[(g * group * D + i) * M + r] * 0.125f;
            int64_t base = (slot[r] * kv_heads + g) * T * D, n = pos[r] + 1, i = 0;
            for (; i + 3 <= group; i += 3)
                attend<3>(&q[i * D], k_cache + base, v_cache + base, n, scores.data(), T, &o[i * D]);
            for (; i < group; i++)
                attend<1>(&q[i * D], k_cache + base, v_cache + base, n, scores.data(), T, &o[i * D]);
            for (int64_t j = 0; j < group * D; j++) out[(g * group * D + j) * M + r] = o[j];
        }
}

// The k largest of each column of logits [V][M], best first, as log-probabilities; ids and logp are [M][k].
void top_log_probs(const float* logits, int64_t V, int64_t M, int64_t k, int32_t* ids, float* logp) {
    const int64_t buffer = 512;
    std::vector<float> top(M, -INFINITY), sum(M, 0.0f), threshold(M, -INFINITY);
    std::vector<std::vector<std::pair<float, int32_t>>> found(M);
    for (int64_t v = 0; v < V; v++)
        for (int64_t r = 0; r < M; r++) top[r] = std::max(top[r], logits[v * M + r]);
    auto better = [](const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
        return a.first != b.first ? a.first > b.first : a.second < b.second;
    };
    for (int64_t v = 0; v < V; v++) {
        const float* row = logits + v * M;
        int any = 0;
        for (int64_t r = 0; r < M; r++) {
            sum[r] += fast_exp(row[r] - top[r]);
            any |= row[r] > threshold[r];
        }
        if (!any) continue;
        for (int64_t r = 0; r < M; r++) {
            if (!(row[r] > threshold[r])) continue;
            found[r].push_back({row[r], (int32_t)v});
            if ((int64_t)found[r].size() == buffer) {
                std::nth_element(found[r].begin(), found[r].begin() + k, found[r].end(), better);
                found[r].resize(k);
                threshold[r] = std::min_element(found[r].begin(), found[r].end())->first;
            }
        }
    }
    for (int64_t r = 0; r < M; r++) {
        std::partial_sort(found[r].begin(), found[r].begin() + k, found[r].end(), better);
        for (int64_t i = 0; i < k; i++) {
            ids[r * k + i] = found[r][i].second;
            logp[r * k + i] = found[r][i].first - top[r] - std::log(sum[r]);
        }
    }
}
}
