"""The distillation loss on the hot-token head, with its gradient taken by hand.

The head is frozen, so the gradient with respect to the hidden state is all that is needed, and logits exist
for one chunk of rows at a time: memory stays small and each matrix product stays in the cache.
"""

from typing import Any

import torch
from torch import Tensor

_CHUNK = 512  # rows


class HotHeadLoss(torch.autograd.Function):
    """Mean over rows of the cross-entropy from a sparse label to the student's hot-token distribution.

    `hidden` `[R, width]`, `head` `[hot, width]`; row i's label puts weight `label_weight[i, j] >= 0` on hot
    index `label_index[i, j]`, both `[R, k]`; a row's weights may sum to less than 1 (mass outside the head).
    The result also equals KL(label || student) up to the label's own entropy, which no gradient reaches.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, label_index: Tensor, label_weight: Tensor) -> Tensor:
        """Loss; the gradient is taken at once and kept for `backward`."""
        rows = len(hidden)
        total = hidden.new_zeros((), dtype=torch.float64)
        gradient = torch.empty_like(hidden)
        for low in range(0, rows, _CHUNK):
            part = slice(low, low + _CHUNK)
            logits = hidden[part] @ head.T
            log_sum = logits.logsumexp(dim=1, keepdim=True)
            mass = label_weight[part].sum(dim=1, keepdim=True)
            picked = logits.gather(1, label_index[part])
            total += (mass * log_sum).sum().double() - (label_weight[part] * picked).sum().double()
            slope = logits.sub_(log_sum).exp_().mul_(mass)
            slope.scatter_add_(1, label_index[part], -label_weight[part])
            torch.mm(slope, head, out=gradient[part])
        ctx.save_for_backward(gradient.div_(rows))
        return (total / rows).to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        """The kept gradient times `upstream`; label and head get none."""
        (gradient,) = ctx.saved_tensors
        return gradient * upstream, None, None, None


def labels(top_ids: Tensor, top_logp: Tensor, hot_index: Tensor, soft_share: float) -> tuple[Tensor, Tensor]:
    """Label indices and weights `[R, k]` for `HotHeadLoss` from the target's top-k distribution.

    `hot_index` int64 `[vocabulary]` maps a token id to its row in the head, -1 if it has none. The label is
    `soft_share` times the target's probabilities plus the rest on its most probable token; what lies outside
    the head is dropped.
    """
    index = hot_index[top_ids]
    weight = top_logp.exp() * soft_share
    weight[:, 0] += 1.0 - soft_share
    return index.clamp(min=0), weight * (index >= 0)
