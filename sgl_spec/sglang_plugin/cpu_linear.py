"""SGLang's unquantised linear layers and output heads through the packed CPU kernel.

A row's result is the same bit for bit however many rows there are, so the target says the same in a verify
pass as in plain decoding. Original weights are freed once packed; where the kernel cannot be built, SGLang's
own path stays.
"""

from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.runtime_context import get_parallel

from sgl_spec.cpu.build import load
from sgl_spec.cpu.linear import PackedLinear, Storage, set_threads, storage_of
from sgl_spec.sglang_plugin import fixed_weights

PACKED = "sgl_spec_packed"
_storage: Storage = "fp32"  # of all weights of this process, the draft's included


def own_bias(layer: torch.nn.Module) -> torch.Tensor | None:
    """Return the bias that goes into the packed layer: one that every call adds, on the only rank."""
    if getattr(layer, "skip_bias_add", False) or get_parallel().tp_size > 1:
        return None
    return getattr(layer, "bias", None)


def packed_head(lm_head: Any) -> PackedLinear:
    """Return the packed output head, made at its first use; a tied head keeps its weight for the embedding."""
    packed = getattr(lm_head, PACKED, None)
    if packed is None:
        packed = PackedLinear(lm_head.weight, storage=storage_of(lm_head.weight, _storage))
        setattr(lm_head, PACKED, packed)
    return packed


def install(storage: Storage) -> str:
    """Route linear layers through the kernel; return a sentence that says what is used."""
    global _storage  # noqa: PLW0603 - a process serves one target
    _storage = storage
    module = load()
    if isinstance(module, str):
        return f"Linear layers run on PyTorch: {module}"
    set_threads(torch.get_num_threads())
    plain_apply, plain_head = UnquantizedLinearMethod.apply, LogitsProcessor._compute_lm_head

    def pack(self: UnquantizedLinearMethod, layer: torch.nn.Module) -> None:
        if layer.weight.ndim == 2 and layer.weight.dtype in (torch.float32, torch.bfloat16):
            kept = storage_of(layer.weight, storage)
            setattr(layer, PACKED, PackedLinear(layer.weight, own_bias(layer), storage=kept))
            layer.weight.data = layer.weight.new_empty(0, layer.weight.shape[1])

    def apply(
        self: UnquantizedLinearMethod,
        layer: torch.nn.Module,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        packed = getattr(layer, PACKED, None)
        if packed is None or x.dtype != torch.float32:
            return plain_apply(self, layer, x, bias)
        out = packed(x)
        return out if bias is None or own_bias(layer) is not None else out.add_(bias)

    def head(
        self: LogitsProcessor,
        hidden_states: torch.Tensor,
        lm_head: Any,
        embedding_bias: Any = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        if hidden_states.dtype != torch.float32 or embedding_bias is not None or not hasattr(lm_head, "weight"):
            return plain_head(self, hidden_states, lm_head, embedding_bias, **kwargs)
        return packed_head(lm_head)(hidden_states)

    UnquantizedLinearMethod.process_weights_after_loading = pack
    UnquantizedLinearMethod.apply = apply
    LogitsProcessor._compute_lm_head = head
    fixed_weights.install()
    other = "" if storage == "fp32" else ": another numerical model than fp32, with and without a draft"
    return f"Linear layers run on the packed CPU kernel, weights stored as {storage}{other}"
