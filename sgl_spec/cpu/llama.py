"""The forward of a Llama-family model in one call of the C++ kernels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sgl_spec.cpu.build import load
from sgl_spec.cpu.greedy import GreedyHead
from sgl_spec.cpu.linear import PackedLinear
from sgl_spec.errors import ConfigError

NONE = 0  # the address of a tensor that a layer does not have
Span = tuple[int, int, list[int]]  # request row, first position, ids


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Norms are [H] or [head_dim] float32; `keys` and `values` are its KV pool [slots, Hkv, D]."""

    qkv: PackedLinear  # outputs: all query heads, all key heads, all value heads; with its bias, if any
    o: PackedLinear
    gate_up: PackedLinear  # outputs: gate, then up
    down: PackedLinear
    input_norm: torch.Tensor
    post_norm: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None


class LlamaForward:
    """Hidden states of single tokens of many requests over a paged KV pool, float32.

    Every token's result is the same bit for bit whatever else is in the call: decode, verify of a chain, chunked
    prefill and a prefix hit agree exactly. Half-split rotary embedding over the whole head; no sliding window.

    Args:
        embedding: [V, H]; final_norm: [H]; cos_sin: [positions, head_dim], cosines in the first half.
        query_heads, kv_heads: of the whole model. eps: of the norms. scale: of the attention scores.
    """

    def __init__(
        self,
        layers: list[LayerWeights],
        embedding: torch.Tensor,
        final_norm: torch.Tensor,
        cos_sin: torch.Tensor,
        query_heads: int,
        kv_heads: int,
        eps: float,
        scale: float,
    ) -> None:
        module = load()
        if isinstance(module, str):
            raise ConfigError(f"the fused Llama forward needs the C++ kernels: {module}")
        dim = layers[0].keys.shape[2]
        floats = [embedding, final_norm, cos_sin]
        rows = []
        for layer in layers:
            own = [layer.input_norm, layer.post_norm, layer.q_norm, layer.k_norm, layer.keys, layer.values]
            floats += [tensor for tensor in own if tensor is not None]
            linears = [layer.qkv.native, layer.o.native, layer.gate_up.native, layer.down.native]
            rows.append((*linears, *(NONE if tensor is None else tensor.data_ptr() for tensor in own)))
        for tensor in floats:
            if tensor.dtype != torch.float32 or not tensor.is_contiguous() or tensor.device.type != "cpu":
                raise ConfigError(f"the fused Llama forward takes contiguous float32 CPU tensors, not {tensor.dtype}")
        if dim % 16 or cos_sin.shape[1] != dim:
            raise ConfigError(f"head_dim={dim} with {cos_sin.shape[1]} rotary columns has no fused Llama forward")
        if query_heads // kv_heads > 64:
            raise ConfigError(
                f"{query_heads // kv_heads} query heads per key head are more than 64, the most supported"
            )
        self.hidden = embedding.shape[1]
        self._kept = (layers, floats)  # the C++ object holds addresses only
        self._native = module.Llama(
            [self.hidden, layers[0].down.in_features, query_heads, kv_heads, dim],
            eps,
            scale,
            embedding.data_ptr(),
            final_norm.data_ptr(),
            cos_sin.data_ptr(),
            rows,
            "",
        )

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        rows: torch.Tensor,
        req_to_token: torch.Tensor,
    ) -> torch.Tensor:
        """Normalised hidden states [T, H]; writes the tokens' keys and values to their slots.

        ids, positions, slots, rows: int64 [T]; token t attends to ``req_to_token[rows[t], : positions[t] + 1]``
        (int32). Tokens of one request come in the order of their positions.
        """
        whole = [tensor.to(torch.int64).contiguous() for tensor in (ids, positions, slots, rows)]
        out = torch.empty(ids.shape[0], self.hidden)
        self._native.forward(
            *(tensor.data_ptr() for tensor in whole),
            ids.shape[0],
            req_to_token.data_ptr(),
            req_to_token.stride(0),
            out.data_ptr(),
        )
        return out

    __call__ = forward

    def states(self, spans: Sequence[Span], req_to_token: torch.Tensor) -> torch.Tensor:
        """As `forward`, of all tokens of the spans; slots are those in `req_to_token`.

        A span is (row, start, ids): a request's tokens at positions start, start + 1, ... Lists and numbers go to the
        kernels as they are: after a forward has pushed all else out of the caches, each tensor operation is slow.
        """
        out = torch.empty(sum(len(ids) for _, _, ids in spans), self.hidden)
        self._native.states(spans, req_to_token.data_ptr(), req_to_token.stride(0), out.data_ptr())
        return out

    def best(self, spans: Sequence[Span], req_to_token: torch.Tensor, head: GreedyHead) -> list[int]:
        """The index of the head's largest output after each token of the spans, as `GreedyHead.best`."""
        self._check(head.head)
        if head.native is None:
            return head.best(self.states(spans, req_to_token))
        found: list[int] = self._native.best(spans, req_to_token.data_ptr(), req_to_token.stride(0), head.native)
        return found

    def greedy_chains(
        self,
        spans: Sequence[Span],
        req_to_token: torch.Tensor,
        head: PackedLinear,
        orders: list[tuple[int, float, float]],
        token_ids: torch.Tensor | None = None,
    ) -> tuple[list[list[int]], list[list[float]], float]:
        """Draft a greedy chain behind each span in one call: (tokens, their probabilities under this model, seconds).

        The seconds are those of the first forward, its logits included.

        One forward over the spans (as in `states`), then one per further token over the requests that still go on;
        the new tokens' keys go to the slots that `req_to_token` already names for their positions.

        Args:
            head: logits of the hidden state. token_ids: int64 [N], the token of each of its rows; None: the row.
            orders: per span (most tokens, stop_below, go_on): its chain ends before the token with which the
                product of the probabilities falls below `stop_below`, or after the one with which it falls below
                `go_on`.
        """
        self._check(head)
        names = None if token_ids is None else token_ids.contiguous()
        chains: tuple[list[list[int]], list[list[float]], float] = self._native.chain(
            spans,
            req_to_token.data_ptr(),
            req_to_token.stride(0),
            head.native,
            NONE if names is None else names.data_ptr(),
            orders,
        )
        return chains

    def _check(self, head: PackedLinear) -> None:
        if head.native is None or head.in_features != self.hidden:
            raise ConfigError(f"the head takes {head.in_features} inputs, the model has hidden size {self.hidden}")
