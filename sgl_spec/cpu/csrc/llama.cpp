#include "llama.h"

#include <algorithm>
#include <cstring>

#include "pool.h"

namespace sgl_spec {

Llama::Llama(LlamaShape shape, const float* embedding, const float* final_norm, const float* cos_sin,
             std::vector<LlamaLayer> layers, const std::string& isa)
    : kernels_(&kernels_for(isa)),
      shape_(shape),
      embedding_(embedding),
      final_norm_(final_norm),
      cos_sin_(cos_sin),
      layers_(std::move(layers)) {}

void Llama::attention(const LlamaLayer& layer, const LlamaTokens& tokens, float* qkv, float* out) const {
  const int64_t dim = shape_.head_dim, q_width = shape_.query_heads * dim, kv_width = shape_.kv_heads * dim;
  const int64_t width = q_width + 2 * kv_width;
  int64_t longest = 0;
  for (int64_t t = 0; t < tokens.count; ++t) {
    float* row = qkv + t * width;
    if (layer.q_norm) {
      for (int64_t h = 0; h < shape_.query_heads; ++h)
        kernels_->rms_norm(row + h * dim, layer.q_norm, shape_.eps, dim, row + h * dim);
      for (int64_t h = 0; h < shape_.kv_heads; ++h)
        kernels_->rms_norm(row + q_width + h * dim, layer.k_norm, shape_.eps, dim, row + q_width + h * dim);
    }
    const float* angles = cos_sin_ + tokens.positions[t] * dim;
    kernels_->rotate(row, shape_.query_heads + shape_.kv_heads, dim, angles, angles + dim / 2);
    std::memcpy(layer.keys + tokens.slots[t] * kv_width, row + q_width, kv_width * sizeof(float));
    std::memcpy(layer.values + tokens.slots[t] * kv_width, row + q_width + kv_width, kv_width * sizeof(float));
    longest = std::max(longest, tokens.positions[t] + 1);
  }
  const AttendArgs args{layer.keys, layer.values, shape_.query_heads, shape_.kv_heads, dim, longest, shape_.scale};
  const auto one = [&](int64_t i) {
    thread_local std::vector<float> scores;
    if (scores.size() < static_cast<std::size_t>(4 * longest)) scores.resize(4 * longest);
    const int64_t t = i / shape_.kv_heads;
    kernels_->attend(args, qkv + t * width, tokens.req_to_token + tokens.rows[t] * tokens.row_stride,
                     tokens.positions[t] + 1, i % shape_.kv_heads, scores.data(), out + t * q_width);
  };
  const int64_t pieces = tokens.count * shape_.kv_heads;
  if (get_threads() == 1)
    for (int64_t i = 0; i < pieces; ++i) one(i);
  else
    parallel(pieces, one);
}

void Llama::forward(const LlamaTokens& tokens, float* out) const {
  const int64_t n = tokens.count, hidden = shape_.hidden, inter = shape_.intermediate;
  const int64_t q_width = shape_.query_heads * shape_.head_dim;
  const int64_t qkv_width = q_width + 2 * shape_.kv_heads * shape_.head_dim;
  thread_local std::vector<float> state, normed, wide, attended;
  state.resize(n * hidden);
  normed.resize(n * std::max(hidden, inter));
  wide.resize(n * std::max(qkv_width, 2 * inter));
  attended.resize(n * std::max(q_width, hidden));
  for (int64_t t = 0; t < n; ++t)
    std::memcpy(state.data() + t * hidden, embedding_ + tokens.ids[t] * hidden, hidden * sizeof(float));
  const auto norm = [&](const float* weight, float* to) {
    for (int64_t t = 0; t < n; ++t) kernels_->rms_norm(state.data() + t * hidden, weight, shape_.eps, hidden, to + t * hidden);
  };
  for (const LlamaLayer& layer : layers_) {
    norm(layer.input_norm, normed.data());
    layer.qkv->forward(normed.data(), hidden, n, wide.data(), qkv_width);
    attention(layer, tokens, wide.data(), attended.data());
    layer.o->forward(attended.data(), q_width, n, normed.data(), hidden);
    kernels_->add_row(normed.data(), n * hidden, state.data());
    norm(layer.post_norm, normed.data());
    layer.gate_up->forward(normed.data(), hidden, n, wide.data(), 2 * inter);
    for (int64_t t = 0; t < n; ++t) kernels_->silu_mul(wide.data() + t * 2 * inter, inter, normed.data() + t * inter);
    layer.down->forward(normed.data(), inter, n, attended.data(), hidden);
    kernels_->add_row(attended.data(), n * hidden, state.data());
  }
  norm(final_norm_, out);
}

}  // namespace sgl_spec
