"""SGLang attention backend for CPUs: prefill, decode, chain verify and draft catch-up are one operation.

Every query token attends to the slots ``req_to_token[row, 0 : position + 1]`` of its own request. That
holds in all of SGLang's forward modes as long as drafts are chains (topk = 1) and slots are in the order
of positions, so one kernel serves them all, and a token's result does not depend on what else is in the
batch: decode, verify, chunked prefill and prefix hits agree.
"""

import logging
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.model_executor.forward_batch_info import ForwardBatch

from sgl_spec.cpu.attention import attend
from sgl_spec.errors import ConfigError
from sgl_spec.sglang_plugin import cpu_llama

logger = logging.getLogger(__name__)

NAME = "sgl_spec_cpu"


def rows_of_tokens(forward_batch: ForwardBatch) -> torch.Tensor:
    """Return the row of ``req_to_token`` of each query token: int64 [T]."""
    rows = forward_batch.req_pool_indices.long()
    lengths = forward_batch.extend_seq_lens
    if forward_batch.forward_mode.is_decode():
        return rows
    if lengths is None:
        return rows.repeat_interleave(forward_batch.input_ids.shape[0] // rows.shape[0])
    return rows.repeat_interleave(lengths.long())


class CpuAttentionBackend(AttentionBackend):
    """Causal attention over SGLang's paged pool, fp32, for any mix of request lengths."""

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        if model_runner.sliding_window_size is not None:
            raise ConfigError(
                f"attention_backend={NAME} has no sliding-window layers, which this model needs: "
                "use --attention-backend torch_native and no draft model"
            )
        if model_runner.kv_cache_dtype != torch.float32:
            raise ConfigError(
                f"kv_cache_dtype={model_runner.kv_cache_dtype} is not supported on a CPU: "
                "use --dtype float32 --kv-cache-dtype auto"
            )
        self.pool = model_runner.token_to_kv_pool
        self.req_to_token = model_runner.req_to_token_pool.req_to_token
        self.rows: torch.Tensor | None = None
        self.fused = cpu_llama.install(model_runner, rows_of_tokens)
        if isinstance(self.fused, str):
            logger.warning("SGLang's own layers run on this CPU, slower: %s", self.fused)

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Work out once per forward which request each token belongs to."""
        spec_info = forward_batch.spec_info
        if spec_info is not None and getattr(spec_info, "topk", 1) > 1:
            raise ConfigError(f"attention_backend={NAME} verifies chains only: use speculative_eagle_topk=1")
        self.rows = rows_of_tokens(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch: ForwardBatch, in_capture: bool = False) -> None:
        """As `init_forward_metadata`: there are no graphs on a CPU."""
        self.init_forward_metadata(forward_batch)

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **_: Any,
    ) -> torch.Tensor:
        """Write `k`, `v` to the pool, then attend: q [T, Hq * D] -> [T, Hq * Dv]."""
        if save_kv_cache and k is not None:
            self.pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)
        return attend(
            q.reshape(-1, layer.tp_q_head_num * layer.qk_head_dim),
            self.pool.get_key_buffer(layer.layer_id),
            self.pool.get_value_buffer(layer.layer_id),
            self.req_to_token,
            self.rows,
            forward_batch.positions + 1,
            layer.scaling,
            layer.logit_cap,
        )

    forward_decode = forward_extend

    def support_triton(self) -> bool:
        """Triton needs an accelerator."""
        return False


class ChainDraftBackend:
    """What stock STANDALONE asks of a multi-step draft backend: one backend for all steps."""

    def __init__(self, model_runner: Any, topk: int, num_steps: int) -> None:
        if topk != 1:
            raise ConfigError(f"speculative_eagle_topk={topk} needs an accelerator: use 1 on a CPU")
        self.attn_backends = [CpuAttentionBackend(model_runner) for _ in range(max(num_steps - 1, 0))]

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Plan every step: the rows are the same for all of them."""
        for backend in self.attn_backends:
            backend.init_forward_metadata(forward_batch)
