"""Softmax attention of single tokens over a paged KV pool, float32, with PyTorch where the kernels are missing."""

import torch

from sgl_spec.cpu.build import load
from sgl_spec.errors import ConfigError

NO_WINDOW = -1
WIDTH = 16  # the kernels take head sizes that are multiples of this
MOST_GROUP = 64  # query heads that may share a key head in the kernels


def attend(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    req_to_token: torch.Tensor,
    row_of_token: torch.Tensor,
    kv_len: torch.Tensor,
    scale: float,
    logit_cap: float = 0.0,
    sliding_window: int = NO_WINDOW,
) -> torch.Tensor:
    """Attention of each token to the last `sliding_window` of its first `kv_len` slots: [T, Hq * Dv].

    With the C++ kernels a token's result is the same bit for bit whatever else is in the call: decode, verify,
    chunked prefill and a prefix hit agree exactly. Next to each other, tokens of one request share the reading
    of their keys.

    Args:
        q: [T, Hq * D] fp32. k_buffer: [slots, Hkv, D] fp32. v_buffer: [slots, Hkv, Dv] fp32.
        req_to_token: int32 [requests, columns], the slots of each request in the order of positions.
        row_of_token: integers [T], the request of each token.
        kv_len: integers [T], how many slots of its request the token sees, its own included; at least 1.
        scale: of the scores. logit_cap: where positive, scores become cap * tanh(score / cap).
        sliding_window: most slots that a token sees; -1: all.
    """
    _, kv_heads, dim = k_buffer.shape
    heads, v_dim = q.shape[1] // dim, v_buffer.shape[2]
    if q.shape[1] % dim or heads % kv_heads:
        raise ConfigError(f"q has {q.shape[1]} columns, which {kv_heads} key heads of {dim} do not divide")
    if sliding_window < 1 and sliding_window != NO_WINDOW:
        raise ConfigError(f"sliding_window={sliding_window} must be at least 1, or -1 for none")
    rows, lengths = row_of_token.long().contiguous(), kv_len.long().contiguous()
    module = load()
    narrow = dim % WIDTH or v_dim % WIDTH or heads // kv_heads > MOST_GROUP
    if isinstance(module, str) or narrow:
        return _attend_torch(q, k_buffer, v_buffer, req_to_token, rows, lengths, scale, logit_cap, sliding_window)
    for tensor in (q, k_buffer, v_buffer):
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise ConfigError(f"attention on the CPU takes float32 tensors there, not {tensor.dtype}")
    if req_to_token.dtype != torch.int32 or not (k_buffer.is_contiguous() and v_buffer.is_contiguous()):
        raise ConfigError("attention on the CPU takes an int32 req_to_token and contiguous KV buffers")
    q = q.contiguous()
    out = torch.empty(q.shape[0], heads * v_dim)
    sizes = [q.shape[0], q.shape[1], req_to_token.stride(0), heads, kv_heads, dim, v_dim, sliding_window]
    pointers = (t.data_ptr() for t in (q, k_buffer, v_buffer, req_to_token, rows, lengths, out))
    module.attend(*pointers, sizes, scale, logit_cap)
    return out


def _attend_torch(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    logit_cap: float,
    sliding_window: int,
) -> torch.Tensor:
    _, kv_heads, dim = k_buffer.shape
    out = q.new_empty(q.shape[0], q.shape[1] // dim * v_buffer.shape[2])
    start = 0
    for row, count in zip(*(part.tolist() for part in torch.unique_consecutive(rows, return_counts=True)), strict=True):
        seen = lengths[start : start + count, None]
        key = torch.arange(int(seen.max()))
        slots = req_to_token[row, : len(key)].long()
        queries = q[start : start + count].view(count, kv_heads, -1, dim)
        scores = torch.einsum("thgd,shd->hgts", queries, k_buffer[slots]) * scale
        if logit_cap > 0:
            scores = logit_cap * torch.tanh(scores / logit_cap)
        visible = key < seen
        if sliding_window != NO_WINDOW:
            visible &= key >= seen - sliding_window
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        out[start : start + count] = torch.einsum("hgts,shd->thgd", weights, v_buffer[slots]).reshape(count, -1)
        start += count
    return out
