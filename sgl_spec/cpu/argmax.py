"""The index of each row's largest value, in one reading of the row."""

import torch

from sgl_spec.cpu.build import load


def argmax(x: torch.Tensor) -> list[int]:
    """As ``x.argmax(dim=-1).tolist()`` of a matrix, [rows]: the lowest index among equal maxima.

    Contiguous float32 rows on the CPU go through the C++ kernels, which pass over NaN; PyTorch takes the rest.
    """
    module = load()
    native = (
        x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous() and x.ndim == 2 and x.shape[1] > 0
    )
    if isinstance(module, str) or not native:
        return x.argmax(dim=-1).tolist()
    found: list[int] = module.argmax(x.data_ptr(), x.shape[0], x.shape[1])
    return found
