#include "attend.h"

#include "pool.h"

namespace sgl_spec {

void attend_tokens(const Kernels& kernels, const AttendArgs& args, int64_t tokens) {
  thread_local std::vector<int64_t> bounds;
  bounds.clear();
  for (int64_t t = 0; t < tokens; ++t)
    if (t == 0 || args.row_of_token[t] != args.row_of_token[t - 1] || t - bounds.back() == kAttendTokens) bounds.push_back(t);
  bounds.push_back(tokens);
  const int64_t* cut = bounds.data();
  const int64_t pieces = static_cast<int64_t>(bounds.size()) - 1;
  parallel(pieces * args.kv_heads, [&, cut](int64_t i) {
    const int64_t piece = i / args.kv_heads;
    kernels.attend(args, cut[piece], cut[piece + 1], i % args.kv_heads);
  });
}

}  // namespace sgl_spec
