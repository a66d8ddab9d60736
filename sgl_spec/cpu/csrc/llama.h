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

// What a greedy chain drafts for one request: at most `count` tokens, ending before the token with which the product
// of the probabilities falls below `stop_below`, or after the one with which it falls below `go_on`.
struct ChainOrder {
  int64_t last;  // the request's last token among the tokens given
  int64_t count;
  float stop_below;
  float go_on;
};

class Llama {
 public:
  // embedding [V, hidden]; final_norm [hidden]; cos_sin [positions, head_dim], cosines first.
  Llama(LlamaShape shape, const float* embedding, const float* final_norm, const float* cos_sin,
        std::vector<LlamaLayer> layers, const std::string& isa);

  // Writes the normalised hidden state of every token to out [count, hidden].
  void forward(const LlamaTokens& tokens, float* out) const;

  // Greedy chains: one forward over `tokens`, then one per further token over the requests still going. The head's
  // row i is token ids[i] (null: token i). tokens_out and probabilities [orders, stride]; lengths [orders]. Returns the
  // seconds of the first forward, its logits included.
  double chain(const LlamaTokens& tokens, const PackedLinear& head, const int64_t* ids, const std::vector<ChainOrder>& orders,
               int64_t stride, int64_t* tokens_out, float* probabilities, int64_t* lengths) const;

 private:
  void attention(const LlamaLayer& layer, const LlamaTokens& tokens, float* qkv, float* out) const;

  const Kernels* kernels_;
  LlamaShape shape_;
  const float *embedding_, *final_norm_, *cos_sin_;
  std::vector<LlamaLayer> layers_;
};

}  // namespace sgl_spec
