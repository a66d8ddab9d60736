// The forward of a Llama-family model over single tokens of many requests, in one call.
#pragma once
#include <tuple>
#include <vector>

#include "greedy.h"
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

// The tokens of request row get<0> at positions get<1>, get<1> + 1, ...
using Span = std::tuple<int64_t, int64_t, std::vector<int64_t>>;

// The tokens of spans, laid out for a forward; their slots are those that req_to_token names for their positions.
class SpanTokens {
 public:
  SpanTokens(const std::vector<Span>& spans, const int32_t* req_to_token, int64_t row_stride);

  LlamaTokens tokens() const;
  // Where each span's last token stands among all tokens.
  const std::vector<int64_t>& lasts() const { return lasts_; }

 private:
  std::vector<int64_t> ids_, positions_, slots_, rows_, lasts_;
  const int32_t* req_to_token_;
  int64_t row_stride_;
};

// What a greedy chain drafts for one request: at most `count` tokens, ending before the token with which the product
// of the probabilities falls below `stop_below`, or after the one with which it falls below `go_on`.
struct ChainOrder {
  int64_t count;
  float stop_below;
  float go_on;
};

// One chain: its tokens, and their probabilities under the model.
struct Chain {
  std::vector<int64_t> tokens;
  std::vector<float> probabilities;
};

class Llama {
 public:
  // embedding [V, hidden]; final_norm [hidden]; cos_sin [positions, head_dim], cosines first.
  Llama(LlamaShape shape, const float* embedding, const float* final_norm, const float* cos_sin,
        std::vector<LlamaLayer> layers, const std::string& isa);

  // Writes the normalised hidden state of every token to out [count, hidden].
  void forward(const LlamaTokens& tokens, float* out) const;

  // The index of the head's largest output after each token, the lowest among equals: [tokens].
  std::vector<int64_t> best(const LlamaTokens& tokens, const GreedyHead& head) const;

  // Greedy chains, one for each span and order: one forward over the spans, then one per further token over the requests
  // still going. The head's row i is token ids[i] (null: token i). Returns the seconds of the first forward, its logits
  // included.
  double chain(const SpanTokens& spans, const PackedLinear& head, const int64_t* ids, const std::vector<ChainOrder>& orders,
               std::vector<Chain>* chains) const;

 private:
  void attention(const LlamaLayer& layer, const LlamaTokens& tokens, float* qkv, float* out) const;

  const Kernels* kernels_;
  LlamaShape shape_;
  const float *embedding_, *final_norm_, *cos_sin_;
  std::vector<LlamaLayer> layers_;
};

}  // namespace sgl_spec
