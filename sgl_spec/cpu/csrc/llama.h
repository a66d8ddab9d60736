// The forward of a Llama-family model over single tokens of many requests, in one call.
#pragma once
#include <vector>

#include "linear.h"

namespace sgl_spec {

struct LlamaLayer {
  const PackedLinear *qkv, *o, *gate_up, *down;
  const float *input_norm, *post_norm;
  const float *q_norm, *k_norm;  // [head_dim] each, or null
  float *keys, *values;          // the layer's pool, [slots, kv_heads, head_dim]
};

struct LlamaShape {
  int64_t hidden, intermediate, query_heads, kv_heads, head_dim;
  float eps, scale;
};

// Token t of request row rows[t] has position positions[t] and writes its key and value to slots[t]; it attends to
// req_to_token[rows[t]][0 .. positions[t]]. Tokens of one request must come in the order of their positions.
struct LlamaTokens {
  const int64_t *ids, *positions, *slots, *rows;
  int64_t count;
  const int32_t* req_to_token;
  int64_t row_stride;
};

class Llama {
 public:
  // embedding [V, hidden]; final_norm [hidden]; cos_sin [positions, head_dim], cosines first.
  Llama(LlamaShape shape, const float* embedding, const float* final_norm, const float* cos_sin,
        std::vector<LlamaLayer> layers, const std::string& isa);

  // Writes the normalised hidden state of every token to out [count, hidden].
  void forward(const LlamaTokens& tokens, float* out) const;

 private:
  void attention(const LlamaLayer& layer, const LlamaTokens& tokens, float* qkv, float* out) const;

  const Kernels* kernels_;
  LlamaShape shape_;
  const float *embedding_, *final_norm_, *cos_sin_;
  std::vector<LlamaLayer> layers_;
};

}  // namespace sgl_spec
