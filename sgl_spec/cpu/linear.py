"""A linear layer packed once for few rows, with PyTorch behind the same class where the kernels are missing."""

from typing import Literal, get_args

import torch
from torch.nn import functional

from sgl_spec.cpu.build import load
from sgl_spec.errors import ConfigError

Storage = Literal["fp32", "bf16", "int8"]
STORAGES: tuple[str, ...] = get_args(Storage)


def set_threads(threads: int) -> None:
    """Lets later calls of the kernels use `threads` threads, the caller's included (default 1)."""
    if threads < 1:
        raise ConfigError(f"threads={threads} must be at least 1")
    module = load()
    if not isinstance(module, str):
        module.set_threads(threads)


def storage_of(weight: torch.Tensor, storage: Storage) -> Storage:
    """Return how to keep `weight`: bf16 also where that changes no number, as in checkpoints in bf16.

    Results are then the same bit for bit as with `storage="fp32"`, from half the bytes.
    """
    if storage != "fp32":
        return storage
    exact = all(torch.equal(part.bfloat16().float(), part.float()) for part in (weight[:1], weight))
    return "bf16" if exact else "fp32"


def kept(weight: torch.Tensor, storage: Storage) -> torch.Tensor:
    """The numbers [N, K] in fp32 that `storage` keeps of `weight` [N, K]."""
    if storage == "int8":
        values, scale = _int8(weight.float())
        return values.float() * scale
    return weight.bfloat16().float() if storage == "bf16" else weight.float()


def _int8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers [N, K] and scales [N, 1], symmetric per row; a row that is not finite has no scale."""
    most = rows.abs().amax(dim=1, keepdim=True) if rows.shape[1] else rows.new_zeros(rows.shape[0], 1)
    scale = torch.where(most.isfinite(), most / 127, torch.nan)
    return (rows / scale).nan_to_num(0).round().clamp(-127, 127).to(torch.int8), scale


def as_rows(x: torch.Tensor, width: int) -> torch.Tensor:
    """`x` as a contiguous fp32 CPU tensor [rows, width]; raises ConfigError when it cannot be one."""
    if x.dtype != torch.float32 or x.device.type != "cpu" or x.shape[-1:] != (width,):
        raise ConfigError(
            f"the CPU kernels take float32 rows of {width} on the CPU, not {x.dtype} {tuple(x.shape)} on {x.device}"
        )
    return x.reshape(-1, width).contiguous()


class PackedLinear:
    """y = x W^T + bias over fp32 activations, the weight stored as fp32, bf16 or int8.

    With the C++ kernels a row's result is the same bit for bit whatever the number of rows, the row's place and
    the thread count: each output is one fma chain over k = 0..K-1. bf16 and int8 change the stored numbers only
    (int8: symmetric, one scale per output); the arithmetic stays fp32. The PyTorch path has no such guarantee.

    Args:
        weight: [N, K], fp32 or bf16, on the CPU; it is copied, and the caller may free it.
        bias: [N] or None; copied.
        storage: how the weight is kept.
        isa: instruction set by name (`available_isas()` of the module); "" takes the best one.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, storage: Storage = "fp32", isa: str = ""
    ) -> None:
        if storage not in STORAGES:
            raise ConfigError(f"storage={storage!r} must be one of {', '.join(STORAGES)}")
        if weight.ndim != 2 or weight.dtype not in (torch.float32, torch.bfloat16) or weight.device.type != "cpu":
            raise ConfigError(
                f"a packed weight must be a float32 or bfloat16 matrix on the CPU, not {weight.dtype} "
                f"{tuple(weight.shape)} on {weight.device}"
            )
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ConfigError(f"bias has shape {tuple(bias.shape)}, the weight needs ({weight.shape[0]},)")
        self.out_features, self.in_features = weight.shape
        self.storage = storage
        self.has_bias = bias is not None
        weight = weight.detach().contiguous()
        bias = None if bias is None else bias.detach().float().contiguous()
        module = load()
        self.native = None
        if isinstance(module, str):
            self._keep_for_torch(weight, bias)
            return
        self.native = module.PackedLinear(
            weight.data_ptr(),
            weight.dtype == torch.bfloat16,
            self.out_features,
            self.in_features,
            0 if bias is None else bias.data_ptr(),
            STORAGES.index(storage),
            isa,
        )

    def _keep_for_torch(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._bias = None if bias is None else bias.clone()
        self._scale: torch.Tensor | None = None
        if self.storage == "fp32":
            self._weight = weight.to(torch.float32, copy=True)
        elif self.storage == "bf16":
            self._weight = weight.to(torch.bfloat16, copy=True)
        else:
            self._weight, scale = _int8(weight.float())
            self._scale = scale.squeeze(1)

    @property
    def memory_bytes(self) -> int:
        """Bytes that the packed weight, its scales and the bias take."""
        if self.native is not None:
            return int(self.native.memory_bytes)
        kept = (self._weight, self._scale, self._bias)
        return sum(t.numel() * t.element_size() for t in kept if t is not None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] fp32 → [..., N] fp32."""
        rows = as_rows(x, self.in_features)
        if self.native is not None:
            out = torch.empty(rows.shape[0], self.out_features)
            self.native.forward(rows.data_ptr(), self.in_features, rows.shape[0], out.data_ptr(), self.out_features)
        elif self._scale is None:
            out = functional.linear(rows, self._weight.float(), self._bias)
        else:
            out = functional.linear(rows, self._weight.float()) * self._scale
            out = out if self._bias is None else out + self._bias
        return out.view(*x.shape[:-1], self.out_features)

    __call__ = forward
