#include "llama.h"

#include <algorithm>
#include <cstring>

#include "attend.h"

namespace sgl_spec {

Llama::Llama(LlamaShape shape, const float* embedding, const float* final_norm, const float* cos_sin,
             std::vector<LlamaLayer> layers, const std::string& isa)
    : kernels_(&kernels_for(isa)),
      shape_(shape),
      embedding_(embedding),
      final_norm_(final_norm),
      cos_sin_(cos_sin),
      layers_(std::move(layers)) {}

SpanTokens::SpanTokens(const std::vector<Span>& spans, const int32_t* req_to_token, int64_t row_stride)
    : req_to_token_(req_to_token), row_stride_(row_stride) {
  for (const auto& [row, start, ids] : spans) {
    const int64_t count = static_cast<int64_t>(ids.size());
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    rows_.insert(rows_.end(), ids.size(), row);
    for (int64_t position = start; position < start + count; ++position) {
      positions_.push_back(position);
      slots_.push_back(req_to_token[row * row_stride + position]);
    }
    lasts_.push_back(static_cast<int64_t>(ids_.size()) - 1);
  }
}

LlamaTokens SpanTokens::tokens() const {
  return {ids_.data(), positions_.data(), slots_.data(), rows_.data(), static_cast<int64_t>(ids_.size()), req_to_token_,
          row_stride_};
}

void Llama::attention(const LlamaLayer& layer, const LlamaTokens& tokens, float* qkv, float* out) const {
  const int64_t dim = shape_.head_dim, q_width = shape_.query_heads * dim, kv_width = shape_.kv_heads * dim;
  const int64_t width = q_width + 2 * kv_width;
  thread_local std::vector<int64_t> lengths;
  lengths.resize(tokens.count);
  for (int64_t t = 0; t < tokens.count; ++t) {
    lengths[t] = tokens.positions[t] + 1;
    float* row = qkv + t * width;
    for (int64_t h = 0; h < shape_.query_heads + shape_.kv_heads; ++h) {
      float* head = row + h * dim;
      const float* norm = h < shape_.query_heads ? layer.q_norm : layer.k_norm;
      if (norm) kernels_->rms_norm(head, nullptr, norm, shape_.eps, dim, head);
      kernels_->rotary(head, cos_sin_ + tokens.positions[t] * dim, dim);
    }
    std::memcpy(layer.keys + tokens.slots[t] * kv_width, row + q_width, kv_width * sizeof(float));
    std::memcpy(layer.values + tokens.slots[t] * kv_width, row + q_width + kv_width, kv_width * sizeof(float));
  }
  attend_tokens(*kernels_, {qkv, layer.keys, layer.values, tokens.req_to_token, tokens.rows, lengths.data(), out, width,
                            tokens.row_stride, shape_.query_heads, shape_.kv_heads, dim, dim, -1, shape_.scale, 0.0f},
                tokens.count);
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
  // state += add (where given); to = norm(state).
  const auto norm = [&](const float* add, const float* weight, float* to) {
    for (int64_t t = 0; t < n; ++t)
      kernels_->rms_norm(state.data() + t * hidden, add ? add + t * hidden : nullptr, weight, shape_.eps, hidden, to + t * hidden);
  };
  const float* add = nullptr;
  for (const LlamaLayer& layer : layers_) {
    norm(add, layer.input_norm, normed.data());
    layer.qkv->forward(normed.data(), hidden, n, wide.data(), qkv_width);
    attention(layer, tokens, wide.data(), attended.data());
    layer.o->forward(attended.data(), q_width, n, normed.data(), hidden);
    norm(normed.data(), layer.post_norm, attended.data());
    layer.gate_up->forward(attended.data(), hidden, n, wide.data(), 2 * inter);
    for (int64_t t = 0; t < n; ++t) kernels_->silu_mul(wide.data() + t * 2 * inter, inter, normed.data() + t * inter);
    layer.down->forward(normed.data(), inter, n, attended.data(), hidden);
    add = attended.data();
  }
  norm(add, final_norm_, out);
}

std::vector<int64_t> Llama::best(const LlamaTokens& tokens, const GreedyHead& head) const {
  thread_local std::vector<float> states;
  states.resize(tokens.count * shape_.hidden);
  forward(tokens, states.data());
  std::vector<int64_t> best(tokens.count);
  head.best(states.data(), shape_.hidden, tokens.count, best.data());
  return best;
}

}  // namespace sgl_spec
