"""The draft model inside the engine: its own weights and KV, in the same slots as the target's.

Unshifted layout: the token at position n has its draft KV in the slot of its target KV. `drafted` [slots]
says which slots hold draft KV of the token that the target has there. Invariant: a slot is marked only
after the draft read the very tokens that the target committed up to it, and every pass of the target over
a slot first unmarks it (`forget`). A mark that is wrong costs acceptance, never correctness: the target
verifies everything.

The draft reads nothing at prefill and nothing in rounds without drafting; the first round that drafts
reads what is missing in one catch-up pass, however long it is.
"""

import time
from pathlib import Path
from typing import Any, cast

import torch
from sglang.srt.configs.draft_parallel import DraftParallelSpec, DraftTPExecution
from sglang.srt.layers.moe.utils import draft_model_build_scope
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.base_spec_worker import EagleDraftWorkerBase
from sglang.srt.speculative.draft_parallel import resolve_draft_parallel_layout
from sglang.srt.speculative.spec_utils import draft_pp_context, draft_tp_context
from transformers import PretrainedConfig

from sgl_spec.cpu.linear import Storage
from sgl_spec.draft.model import read_card, read_hot_ids
from sgl_spec.sglang_plugin.chains import ChainOrder, Chains, guess
from sgl_spec.sglang_plugin.cpu_llama import make_pass
from sgl_spec.sglang_plugin.passes import Span

NO_LIMIT = 1 << 30


class DraftModel(EagleDraftWorkerBase):
    """Loads the draft model as a second model worker and keeps track of what it has read."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: TpModelWorker) -> None:
        super().__init__()
        self.parallel_layout = resolve_draft_parallel_layout(
            DraftParallelSpec(tp_execution=DraftTPExecution.TARGET_LAYOUT)
        )
        with draft_tp_context(self.parallel_layout), draft_pp_context(), draft_model_build_scope():
            self.draft_worker = TpModelWorker(
                server_args=server_args,
                gpu_id=gpu_id,
                nccl_port=nccl_port,
                is_draft_worker=True,
                context_length=min(target_worker.model_runner.model_config.context_len, trained_length()),
            )
        self.draft_runner = self.draft_worker.model_runner
        self.drafted = torch.zeros(0, dtype=torch.bool)
        folder = Path(self.draft_runner.model_config.model_path)
        card, hot_ids = (read_card(folder), read_hot_ids(folder)) if folder.is_dir() else (None, None)
        self.hot_ids = None if hot_ids is None else torch.tensor(hot_ids)
        self.head_storage = cast("Storage", "fp32" if card is None else card.head_storage)

    def alloc_memory_pool(self, **kwargs: Any) -> None:
        """Allocate the draft's KV, slot for slot like the target's."""
        self.draft_worker.alloc_memory_pool(**kwargs)
        pool = self.draft_runner.token_to_kv_pool
        self.drafted = torch.zeros(pool.get_key_buffer(pool.start_layer).shape[0], dtype=torch.bool)

    def init_attention_backend(self) -> None:
        """Nothing beyond the model worker's own backend: chains are ordinary passes."""
        self.forward = make_pass(self.draft_runner, self.hot_ids, self.head_storage)

    def _capture_cuda_graphs(self) -> None:
        """Chains run eagerly."""

    def draft(self) -> None:
        """Not used: `SpecWorker` drives the passes."""

    def draft_extend(self) -> None:
        """Not used: there is no pass after verification."""

    @property
    def context_length(self) -> int:
        """Positions that the draft was trained for."""
        return self.draft_runner.model_config.context_len

    def read_until(self, slots: torch.Tensor) -> int:
        """Return how many leading positions the draft has read of a request with these slots, [n]."""
        missing = torch.nonzero(~self.drafted[slots.long()])
        return int(missing[0]) if len(missing) else len(slots)

    def forget(self, slots: torch.Tensor) -> None:
        """The target writes these slots: what the draft has there is void until it reads them again."""
        self.drafted[slots] = False

    def forget_all(self) -> None:
        """``flush_cache``: every slot is free."""
        self.drafted.zero_()

    def mark(self, pool_row: int, start: int, end: int) -> None:
        """The draft has read the committed tokens at positions [start, end) of this request."""
        self.drafted[self.forward.req_to_token[pool_row, start:end].long()] = True

    def chains(self, orders: list[ChainOrder], generator: torch.Generator) -> Chains:
        """Draft a chain for each order: one catch-up pass, then one pass per further token."""
        started = time.perf_counter()
        spans = [Span(order.pool_row, order.read, order.unread) for order in orders]
        logits = self.forward.logits(spans, every_row=False)
        chains = Chains([[] for _ in orders], [[] for _ in orders])
        chains.catchup_tokens = sum(len(span.tokens) for span in spans)
        chains.catchup_ms = (time.perf_counter() - started) * 1e3
        live, survival = list(range(len(orders))), [1.0] * len(orders)
        while True:
            guesses = guess(
                logits,
                [orders[i].sampling for i in live],
                [orders[i].end + len(chains.tokens[i]) for i in live],
                self.hot_ids,
                generator,
            )
            going = []
            for at, i in enumerate(live):
                survival[i] *= guesses.confidences[at]
                if survival[i] < orders[i].stop_below:
                    continue
                chains.tokens[i].append(guesses.tokens[at])
                chains.laws[i].append(guesses.laws[at])
                if len(chains.tokens[i]) < orders[i].count:
                    going.append(i)
            live = going
            if not live:
                break
            spans = [
                Span(orders[i].pool_row, orders[i].end + len(chains.tokens[i]) - 1, chains.tokens[i][-1:]) for i in live
            ]
            logits = self.forward.logits(spans, every_row=False)
            chains.draft_steps += 1
            chains.draft_rows += len(live)
        chains.draft_ms = (time.perf_counter() - started) * 1e3 - chains.catchup_ms
        return chains


def trained_length() -> int:
    """Return how many positions the draft was trained for; past them a request goes on without it."""
    config = PretrainedConfig.get_config_dict(get_spec().speculative_draft_model_path)[0]
    return int(config.get("max_position_embeddings") or NO_LIMIT)


class NoDraftModel:
    """In the place of a draft model where there is none: guesses come from the cache and predictions only."""

    hot_ids: torch.Tensor | None = None
    context_length = 0  # nothing can be drafted at any position

    def read_until(self, slots: torch.Tensor) -> int:
        """Nothing is ever missing."""
        return len(slots)

    def forget(self, slots: torch.Tensor) -> None:
        """There is nothing to forget."""

    def forget_all(self) -> None:
        """There is nothing to forget."""
