"""A draft model with another vocabulary: it reads the text in its own tokens, in KV slots of its own.

Two ways back to the target (`sgl_spec.draft.vocab`): its head is cut to the tokens that both have, and the
guesses are target ids with a proper q; or its words travel as text and the guesses are point masses. Either
way a guess is an id that the target's tokenizer knows, and verification keeps the law exact.
"""

import math
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import torch
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

from sgl_spec.draft.own_kv import OwnKv, Row
from sgl_spec.draft.retokenise import DraftText, Translator
from sgl_spec.draft.textbridge import TextBridge
from sgl_spec.draft.vocab import VocabularyMap
from sgl_spec.errors import VocabularyError
from sgl_spec.sglang_plugin.chains import ChainOrder, Chains, draft_chains
from sgl_spec.sglang_plugin.cpu_llama import make_pass
from sgl_spec.sglang_plugin.draft_worker import DraftWorker, trained_length
from sgl_spec.sglang_plugin.passes import Slots

TEXTS = 256  # requests whose re-encoded text is remembered
MORE = 1  # draft tokens beyond those that the asked text takes on average


class ForeignDraft(DraftWorker):
    """Drafts for a target whose token ids mean nothing to it."""

    reads_own_text = True  # orders hold the whole text

    def __init__(
        self,
        server_args: Any,
        gpu_id: int,
        nccl_port: int,
        target_worker: TpModelWorker,
        path: str,
        relation: VocabularyMap | TextBridge,
        tokenizer: Any,
    ) -> None:
        super().__init__(
            server_args,
            gpu_id,
            nccl_port,
            path,
            min(trained_length(path), target_worker.model_runner.model_config.context_len),
        )
        if self.head_ids is not None:
            raise VocabularyError(
                f"draft_model_path={path} was distilled for the vocabulary of another target: distil one for this one"
            )
        self.relation = relation
        self.translator = Translator(target_worker.tokenizer, tokenizer, self.draft_runner.model_config.vocab_size)
        self.texts: OrderedDict[str, DraftText] = OrderedDict()
        self.hot_ids: torch.Tensor | None = None
        self.head: torch.Tensor | None = None
        self.fed: dict[int, int] | None = None
        if isinstance(relation, VocabularyMap):
            self.hot_ids, self.head = torch.from_numpy(relation.target_ids), torch.from_numpy(relation.draft_ids)
            self.fed = dict(zip(relation.target_ids.tolist(), relation.draft_ids.tolist(), strict=True))

    def alloc_memory_pool(self, **kwargs: Any) -> None:
        """Allocate as many KV slots as the target has, under a table of our own."""
        shared = kwargs["req_to_token_pool"]
        own = ReqToTokenPool(shared.size, self.context_length, shared.device, enable_memory_saver=False)
        super().alloc_memory_pool(**{**kwargs, "req_to_token_pool": own})
        pool = self.draft_runner.token_to_kv_pool
        self.kv = OwnKv(own.req_to_token, pool.get_key_buffer(pool.start_layer).shape[0])

    def init_attention_backend(self) -> None:
        """Nothing beyond the model worker's own backend: chains are ordinary passes."""
        self.forward = make_pass(self.draft_runner, self.head)

    def choices(self) -> None:
        """There is one model: nothing to choose."""

    def sentence(self) -> str:
        """Return how this draft speaks to the target, and what is lost."""
        return self.relation.sentence()

    def read_until(self, slots: Slots) -> int:
        """The target's slots say nothing about this draft: a request starts unread."""
        return 0

    def forget(self, slots: Slots) -> None:
        """What the target writes does not touch this draft's KV."""

    def forget_all(self) -> None:
        """``flush_cache``: every slot is free."""
        self.kv.forget_all()
        self.texts.clear()

    def verified(self, ms: float) -> None:
        """Nothing depends on the target's time here."""

    def commit(self, pool_row: int, read: int, end: int, guesses: list[int], accepted: int) -> int:
        """As `DraftModel.commit`; what was read in vain is found when the next text is compared."""
        return end + 1 + min(accepted, max(len(guesses) - 1, 0))

    def chains(self, orders: list[ChainOrder], generator: torch.Generator) -> Chains:
        """Draft a chain for each order whose text fits; `unread` of an order is the request's whole text."""
        self.kv.begin_round()
        mine: list[ChainOrder] = []
        rows: list[Row] = []
        owners: list[int] = []
        for i, order in enumerate(orders):
            ids = self._text(order.rid).ids(order.unread)
            count = order.count if self.fed is not None else self._words(order, ids)
            row = self.kv.fit(order.rid, ids, count)
            if row is None:
                continue
            read = len(row.ids)
            mine.append(
                replace(
                    order,
                    pool_row=row.number,
                    read=read,
                    unread=ids[read:],
                    count=count,
                    sampling=order.sampling if self.fed is not None else None,
                    shift=len(order.unread) - len(ids),
                )
            )
            rows.append(row)
            owners.append(i)
        said = draft_chains(self.forward, mine, self.hot_ids, generator, self.fed) if mine else Chains([], [])
        for row, order, tokens in zip(rows, mine, said.tokens, strict=True):
            row.ids += order.unread + [self.fed[t] if self.fed is not None else t for t in tokens[:-1]]
        chains = replace(said, tokens=[[] for _ in orders], laws=[[] for _ in orders], hoped=[])
        for at, i in enumerate(owners):
            chains.tokens[i], chains.laws[i] = said.tokens[at], said.laws[at]
            if isinstance(self.relation, TextBridge):
                chains.tokens[i] = self.relation.guesses(orders[i].unread, said.tokens[at], orders[i].count)
                chains.laws[i] = [None] * len(chains.tokens[i])
        return chains

    def _text(self, rid: str) -> DraftText:
        text = self.texts.get(rid)
        if text is None:
            text = self.texts[rid] = DraftText(self.translator)
            if len(self.texts) > TEXTS:
                self.texts.popitem(last=False)
        self.texts.move_to_end(rid)
        return text

    @staticmethod
    def _words(order: ChainOrder, ids: list[int]) -> int:
        """Return how many draft tokens take about as much text as the target tokens that are asked for."""
        return math.ceil(order.count * len(ids) / len(order.unread)) + MORE
