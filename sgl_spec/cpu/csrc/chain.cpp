#include "llama.h"

#include <chrono>
#include <cstring>

namespace sgl_spec {

double Llama::chain(const SpanTokens& spans, const PackedLinear& head, const int64_t* ids,
                    const std::vector<ChainOrder>& orders, std::vector<Chain>* chains) const {
  const LlamaTokens tokens = spans.tokens();
  const int64_t hidden = shape_.hidden, vocab = head.n();
  std::vector<float> states(tokens.count * hidden), logits(orders.size() * vocab), survival(orders.size(), 1.0f);
  std::vector<int64_t> going, next_ids, positions, slots, rows;
  chains->assign(orders.size(), {});
  for (std::size_t i = 0; i < orders.size(); ++i)
    if (orders[i].count > 0) going.push_back(static_cast<int64_t>(i));
  const auto started = std::chrono::steady_clock::now();
  forward(tokens, states.data());
  std::vector<float> lasts(going.size() * hidden);
  for (std::size_t at = 0; at < going.size(); ++at)
    std::memcpy(lasts.data() + at * hidden, states.data() + spans.lasts()[going[at]] * hidden, hidden * sizeof(float));
  head.forward(lasts.data(), hidden, static_cast<int64_t>(going.size()), logits.data(), vocab);
  const std::chrono::duration<double> first = std::chrono::steady_clock::now() - started;
  while (!going.empty()) {
    std::vector<int64_t> live;
    next_ids.clear(), positions.clear(), slots.clear(), rows.clear();
    for (std::size_t at = 0; at < going.size(); ++at) {
      const int64_t i = going[at];
      float probability = 0.0f;
      const int64_t best = kernels_->argmax(logits.data() + at * vocab, vocab, &probability);
      survival[i] *= probability;
      if (!(survival[i] >= orders[i].stop_below)) continue;
      Chain& chain = (*chains)[i];
      chain.tokens.push_back(ids ? ids[best] : best);
      chain.probabilities.push_back(probability);
      const int64_t made = static_cast<int64_t>(chain.tokens.size()), last = spans.lasts()[i];
      if (made == orders[i].count || !(survival[i] >= orders[i].go_on)) continue;
      const int64_t position = tokens.positions[last] + made, row = tokens.rows[last];
      live.push_back(i);
      next_ids.push_back(chain.tokens.back());
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
