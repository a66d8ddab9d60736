"""The draft model inside the engine: its own weights and KV, in the same slots as the target's.

Unshifted layout: the token at position n has its draft KV in the slot of its target KV. `drafted` [slots]
says which slots hold draft KV of the token that the target has there. Invariant: a slot is marked only
after the draft read the very tokens that the target committed up to it, and every pass of the target over
a slot first unmarks it (`forget`). A mark that is wrong costs acceptance, never correctness: the target
verifies everything.

A handful of slots changes in a round: a loop over bytes, since NumPy's indexing is slow where caches are cold.

The draft reads nothing at prefill and nothing in rounds without drafting; the first round that drafts
reads what is missing in one catch-up pass, however long it is.
"""

from typing import Any

import numpy as np
import torch
from sglang.srt.managers.tp_worker import TpModelWorker

from sgl_spec.draft.vocab import SharedVocabulary
from sgl_spec.sglang_plugin.chains import ChainOrder, Chains, draft_chains
from sgl_spec.sglang_plugin.cpu_llama import make_pass
from sgl_spec.sglang_plugin.draft_worker import DraftWorker, trained_length
from sgl_spec.sglang_plugin.passes import Slots


class DraftModel(DraftWorker):
    """A draft model of the target's vocabulary; keeps track of what it has read."""

    reads_own_text = False  # orders begin where the draft's reading ended

    def __init__(
        self,
        server_args: Any,
        gpu_id: int,
        nccl_port: int,
        target_worker: TpModelWorker,
        path: str,
        relation: SharedVocabulary,
    ) -> None:
        context = target_worker.model_runner.model_config.context_len
        super().__init__(server_args, gpu_id, nccl_port, path, min(context, trained_length(path)))
        self.relation = relation
        self.drafted = bytearray()
        ids = relation.allowed(self.head_ids)
        self.hot_ids = None if ids is None else torch.tensor(ids)

    def alloc_memory_pool(self, **kwargs: Any) -> None:
        """Allocate the draft's KV, slot for slot like the target's."""
        super().alloc_memory_pool(**kwargs)
        pool = self.draft_runner.token_to_kv_pool
        self.drafted = bytearray(pool.get_key_buffer(pool.start_layer).shape[0])

    def init_attention_backend(self) -> None:
        """Nothing beyond the model worker's own backend: chains are ordinary passes."""
        self.forward = make_pass(self.draft_runner, self.hot_ids, self.head_storage)

    def choices(self) -> None:
        """There is one model: nothing to choose."""

    def sentence(self) -> str:
        """Return how this draft speaks to the target."""
        return self.relation.sentence()

    def read_until(self, slots: Slots) -> int:
        """Return how many leading positions the draft has read of a request with these slots, [n]."""
        read = np.frombuffer(self.drafted, dtype=bool)[slots]
        return len(read) if read.all() else int(read.argmin())

    def forget(self, slots: Slots) -> None:
        """The target writes these slots: what the draft has there is void until it reads them again."""
        for slot in slots.tolist():
            self.drafted[slot] = False

    def forget_all(self) -> None:
        """``flush_cache``: every slot is free."""
        self.drafted = bytearray(len(self.drafted))

    def mark(self, pool_row: int, start: int, end: int) -> None:
        """The draft has read the committed tokens at positions [start, end) of this request."""
        for slot in self.forward.held(pool_row, start, end).tolist():
            self.drafted[slot] = True

    def verified(self, ms: float) -> None:
        """Nothing depends on the target's time here."""

    def commit(self, pool_row: int, read: int, end: int, guesses: list[int], accepted: int) -> int:
        """Note what the draft has now read of a request it drafted for, and return how many positions.

        It had read `read` positions; `end` is the bonus token's. It read that and all guesses but the last.
        """
        now = end + 1 + min(accepted, max(len(guesses) - 1, 0))
        self.mark(pool_row, read, now)
        return now

    def chains(self, orders: list[ChainOrder], generator: torch.Generator) -> Chains:
        """Draft a chain for each order."""
        return draft_chains(self.forward, orders, self.hot_ids, generator)


class NoDraftModel:
    """In the place of a draft model where there is none: guesses come from the cache and predictions only."""

    hot_ids: torch.Tensor | None = None
    reads_own_text = False
    context_length = 0  # nothing can be drafted at any position

    def read_until(self, slots: Slots) -> int:
        """Nothing is ever missing."""
        return len(slots)

    def forget(self, slots: Slots) -> None:
        """There is nothing to forget."""

    def forget_all(self) -> None:
        """There is nothing to forget."""

    def verified(self, ms: float) -> None:
        """There is nothing to weigh against the target's time."""
