#include "llama.h"

#include <chrono>
#include <cstring>

namespace sgl_spec {

double Llama::chain(const LlamaTokens& tokens, const PackedLinear& head, const int64_t* ids,
                    const std::vector<ChainOrder>& orders, int64_t stride, int64_t* tokens_out, float* probabilities,
                    int64_t* lengths) const {
  const int64_t hidden = shape_.hidden, vocab = head.n();
  std::vector<float> states(tokens.count * hidden), logits(orders.size() * vocab), survival(orders.size(), 1.0f);
  std::vector<int64_t> going, next_ids, positions, slots, rows;
  for (std::size_t i = 0; i < orders.size(); ++i) {
    lengths[i] = 0;
    if (orders[i].count > 0) going.push_back(static_cast<int64_t>(i));
  }
  const auto started = std::chrono::steady_clock::now();
  forward(tokens, states.data());
  std::vector<float> lasts(going.size() * hidden);
  for (std::size_t at = 0; at < going.size(); ++at)
    std::memcpy(lasts.data() + at * hidden, states.data() + orders[going[at]].last * hidden, hidden * sizeof(float));
  head.forward(lasts.data(), hidden, static_cast<int64_t>(going.size()), logits.data(), vocab);
  const std::chrono::duration<double> first = std::chrono::steady_clock::now() - started;
  while (!going.empty()) {
    std::vector<int64_t> live;
    next_ids.clear(), positions.clear(), slots.clear(), rows.clear();
    for (std::size_t at = 0; at < going.size(); ++at) {
      const int64_t i = going[at], done = lengths[i];
      float probability = 0.0f;
      const int64_t best = kernels_->argmax(logits.data() + at * vocab, vocab, &probability);
      survival[i] *= probability;
      if (!(survival[i] >= orders[i].stop_below)) continue;
      tokens_out[i * stride + done] = ids ? ids[best] : best;
      probabilities[i * stride + done] = probability;
      if (++lengths[i] == orders[i].count || !(survival[i] >= orders[i].go_on)) continue;
      const int64_t position = tokens.positions[orders[i].last] + lengths[i], row = tokens.rows[orders[i].last];
      live.push_back(i);
      next_ids.push_back(tokens_out[i * stride + done]);
      positions.push_back(position);
      rows.push_back(row);
      slots.push_back(tokens.req_to_token[row * tokens.row_stride + position]);
    }
    going.swap(live);
    if (going.empty()) break;
    const int64_t count = static_cast<int64_t>(going.size());
    forward({next_ids.data(), positions.data(), slots.data(), rows.data(), count, tokens.req_to_token, tokens.row_stride},
            states.data());
    head.forward(states.data(), hidden, count, logits.data(), vocab);
  }
  return first.count();
}

}  // namespace sgl_spec
