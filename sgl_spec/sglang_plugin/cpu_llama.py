"""Llama-family models of SGLang through the fused CPU forward, for prefill, decode, verify and drafting alike."""

from itertools import accumulate
from typing import Any

import torch
from sglang.srt.runtime_context import get_parallel

from sgl_spec.cpu.build import load
from sgl_spec.cpu.greedy import GreedyHead
from sgl_spec.cpu.linear import PackedLinear, Storage
from sgl_spec.cpu.llama import LayerWeights, LlamaForward
from sgl_spec.sglang_plugin.cpu_linear import PACKED, packed_head
from sgl_spec.sglang_plugin.passes import Span, StockPass

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM")


def fused_forward(runner: Any) -> LlamaForward | str:  # noqa: PLR0911 - one sentence per reason
    """Build the fused forward of a model runner's model, or say in a sentence why it keeps SGLang's own."""
    model, name = runner.model, type(runner.model).__name__
    if name not in ARCHITECTURES:
        return f"{name} has no fused CPU forward"
    if isinstance(load(), str):
        return f"the C++ kernels are missing: {load()}"
    if get_parallel().tp_size > 1:
        return "the fused CPU forward is for tp_size=1"
    layers = list(model.model.layers)
    attention = layers[0].self_attn
    rotary = attention.rotary_emb
    if not getattr(rotary, "is_neox_style", False) or rotary.rotary_dim != rotary.head_size:
        return f"{name} has a rotary embedding that the fused CPU forward does not know"
    if runner.sliding_window_size is not None:
        return f"{name} has sliding-window layers"
    if any(not hasattr(layer.self_attn.qkv_proj, PACKED) for layer in layers):
        return f"{name} is quantised or not in float32"
    pool = runner.token_to_kv_pool
    return LlamaForward(
        [_layer(layer, pool) for layer in layers],
        model.model.embed_tokens.weight.data,
        model.model.norm.weight.data,
        rotary.cos_sin_cache.float().contiguous(),
        attention.num_heads,
        attention.num_kv_heads,
        eps=model.model.norm.variance_epsilon,
        scale=attention.attn.scaling,
    )


def _layer(layer: Any, pool: Any) -> LayerWeights:
    attention, number = layer.self_attn, layer.self_attn.attn.layer_id
    q_norm, k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return LayerWeights(
        qkv=_linear(attention.qkv_proj),
        o=_linear(attention.o_proj),
        gate_up=_linear(layer.mlp.gate_up_proj),
        down=_linear(layer.mlp.down_proj),
        input_norm=layer.input_layernorm.weight.data,
        post_norm=layer.post_attention_layernorm.weight.data,
        keys=pool.get_key_buffer(number),
        values=pool.get_value_buffer(number),
        q_norm=None if q_norm is None else q_norm.weight.data,
        k_norm=None if k_norm is None else k_norm.weight.data,
    )


def _linear(module: Any) -> PackedLinear:
    packed: PackedLinear = getattr(module, PACKED)
    return packed


def install(runner: Any, rows_of_tokens: Any) -> LlamaForward | str:
    """Let the runner's transformer body run fused; the head and everything around it stay SGLang's."""
    fused = fused_forward(runner)
    if isinstance(fused, str):
        return fused
    body = runner.model.model
    stock, table = body.forward, runner.req_to_token_pool.req_to_token

    def forward(
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
        pp_proxy_tensors: Any = None,
    ) -> Any:
        if input_embeds is not None or pp_proxy_tensors is not None or body.layers_to_capture:
            return stock(input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors)
        return fused(input_ids, positions, forward_batch.out_cache_loc, rows_of_tokens(forward_batch), table)

    body.forward = forward
    return fused


class HotPass(StockPass):
    """SGLang's own forward, its logits cut to the hot tokens."""

    def __init__(self, runner: Any, hot_ids: torch.Tensor) -> None:
        super().__init__(runner)
        self.hot_ids = hot_ids.to(runner.device)

    def logits(self, spans: list[Span], every_row: bool) -> torch.Tensor:
        """As `StockPass.logits`, [rows, H]."""
        return super().logits(spans, every_row)[:, self.hot_ids]


class FusedPass(StockPass):
    """A pass without SGLang's forward batch: straight to the fused forward and the packed head."""

    def __init__(self, runner: Any, fused: LlamaForward, head: PackedLinear) -> None:
        super().__init__(runner)
        self.fused, self.head = fused, head
        self.greedy: GreedyHead | None = None

    def logits(self, spans: list[Span], every_row: bool) -> torch.Tensor:
        """As `StockPass.logits`."""
        hidden = self.fused.states(spans, self.req_to_token)
        return self.head(hidden if every_row else hidden[last_rows(spans)])

    def best(self, spans: list[Span]) -> list[int]:
        """As `StockPass.best`, in one call of the kernels where it can."""
        return super().best(spans) if self.greedy is None else self.fused.best(spans, self.req_to_token, self.greedy)


def last_rows(spans: list[Span]) -> list[int]:
    """Return where each request's last token stands among all tokens of the pass."""
    return [end - 1 for end in accumulate(len(span.tokens) for span in spans)]


def make_pass(runner: Any, hot_ids: torch.Tensor | None = None, head_storage: Storage = "fp32") -> StockPass:
    """Return the fastest pass that this runner's model allows.

    `hot_ids` cuts a draft's head to these tokens, kept as `head_storage`; logits then have one column for each.
    """
    fused = getattr(runner.attn_backend, "fused", None)
    if not isinstance(fused, LlamaForward):
        return StockPass(runner) if hot_ids is None else HotPass(runner, hot_ids)
    if hot_ids is not None:
        return FusedPass(runner, fused, PackedLinear(runner.model.lm_head.weight[hot_ids], storage=head_storage))
    return FusedPass(runner, fused, packed_head(runner.model.lm_head))


def make_verify_pass(runner: Any) -> StockPass:
    """As `make_pass`, for the target: the one model that is asked for its `best` tokens."""
    made = make_pass(runner)
    if isinstance(made, FusedPass):
        made.greedy = GreedyHead(runner.model.lm_head.weight, made.head)
    return made
