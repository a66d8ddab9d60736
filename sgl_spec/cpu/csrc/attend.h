// Attention of a batch: cuts it into pieces that threads may take.
#pragma once
#include "kernels.h"

namespace sgl_spec {

// Tokens of one request should stand next to each other: up to kAttendTokens of them share a pass over the keys.
void attend_tokens(const Kernels& kernels, const AttendArgs& args, int64_t tokens);

}  // namespace sgl_spec
