"""Time of one draft step as the CPU engine runs it: packed linears, one token, a cache of 256 tokens."""

import time

import torch
from torch.nn import functional

from sgl_spec.cpu.linear import PackedLinear, storage_of
from sgl_spec.train.student import Student

_CONTEXT = 256  # tokens


def step_ms(student: Student, head_storage: str, repeats: int = 200) -> float:
    """Milliseconds of one token through the layers and the hot head of `student`, one thread.

    The fastest of `repeats`: other programs on the machine only ever add time.
    """
    layers = []
    for layer in student.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        joined = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        gates = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        parts = (joined, attention.o_proj.weight, gates, mlp.down_proj.weight)
        layers.append((layer, [_packed(part.detach().cpu()) for part in parts]))
    head = PackedLinear(student.head.cpu(), storage=head_storage)  # type: ignore[arg-type]
    heads, kv_heads, dim = layers[0][0].shape
    keys, values = torch.randn(2, 1, kv_heads, _CONTEXT, dim)
    times = []
    with torch.inference_mode():
        for _ in range(repeats):
            start = time.perf_counter()
            x = torch.ones(1, student.embedding.shape[1])
            for layer, (qkv, out, gate_up, down) in layers:
                q = qkv.forward(layer.input_layernorm(x))[:, : heads * dim].view(1, heads, 1, dim)
                mixed = functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
                x = x + out.forward(mixed.reshape(1, heads * dim))
                gate, up = gate_up.forward(layer.post_attention_layernorm(x)).chunk(2, dim=-1)
                x = x + down.forward(functional.silu(gate) * up)
            head.forward(x).argmax()
            times.append((time.perf_counter() - start) * 1e3)
    return min(times)


def _packed(weight: torch.Tensor) -> PackedLinear:
    """As the engine keeps a matrix: bf16 where that changes no number, as in every draft that was written to disk."""
    return PackedLinear(weight, storage=storage_of(weight, "fp32"))
