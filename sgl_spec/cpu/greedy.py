"""The greedy token of each row without all of the head's numbers: exact, from a quarter of its bytes."""

import torch

from sgl_spec.cpu.argmax import argmax
from sgl_spec.cpu.build import load
from sgl_spec.cpu.linear import PackedLinear, as_rows

MOST_ROWS = 8  # more rows cost arithmetic, not reading: the whole head is as fast then (see docs/log.md)


class GreedyHead:
    """``argmax(head(x))`` of an output head, the same index for every x.

    Its C++ kernel keeps the weight in int8 too, N * K bytes. What such weights give is off by no more than a bound
    (Cauchy-Schwarz on the rounding of each weight); only outputs that could be the largest are computed in full, by
    the head's own arithmetic. Without the kernels, with a bias, for a head in int8 or many rows, the head itself runs.

    Args:
        weight: [N, K] that `head` has packed, fp32 or bf16, on the CPU; it is copied.
        head: stays in use for what this cannot decide.
    """

    def __init__(self, weight: torch.Tensor, head: PackedLinear) -> None:
        self.head = head
        self.native = None
        module = load()
        if isinstance(module, str) or head.native is None or head.has_bias or head.storage == "int8":
            return
        whole = weight.detach().to(torch.bfloat16 if head.storage == "bf16" else weight.dtype).contiguous()
        self.native = module.GreedyHead(whole.data_ptr(), whole.dtype == torch.bfloat16, head.native, MOST_ROWS)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the weight in int8."""
        return 0 if self.native is None else int(self.native.memory_bytes)

    def best(self, x: torch.Tensor) -> list[int]:
        """[rows, K] fp32 → the index of each row's largest output, the lowest among equals."""
        rows = as_rows(x, self.head.in_features)
        if self.native is None:
            return argmax(self.head(rows))
        found: list[int] = self.native.best(rows.data_ptr(), self.head.in_features, len(rows))
        return found
