"""Several draft models of the target's vocabulary as one: a pyramid whose levels are chosen by what they gain.

`sgl_spec.draft.pyramid` says how levels verify each other and why the law at the top is exact;
`sgl_spec.draft.choice` says which levels take part, for each program. The target judges as ever.
"""

from typing import Any

import torch
from sglang.srt.speculative.base_spec_worker import EagleDraftWorkerBase

from sgl_spec.draft.choice import LevelChoice
from sgl_spec.draft.pyramid import Pyramid, Run, Stage, Where
from sgl_spec.sglang_plugin.chains import ChainOrder, Chains
from sgl_spec.sglang_plugin.draft_model import DraftModel
from sgl_spec.sglang_plugin.level import EngineLevel
from sgl_spec.sglang_plugin.passes import Slots
from sgl_spec.verify.accept import DraftLaw, accept_chain, accept_greedy
from sgl_spec.verify.seeded import seeded_tokens

PASSES = 32  # a level asks the one below as often as it takes
TRIAL = 4  # first drafts of a program, made by all levels
REFRESH = 64  # every so many drafts all levels take part, so that a dropped one is judged again


class PyramidDraft(EagleDraftWorkerBase):
    """Draft models from the smallest to the largest, and the choice between them."""

    reads_own_text = True  # each level knows by itself where its reading ended
    hot_ids: torch.Tensor | None = None  # laws have the target's columns

    def __init__(self, models: list[DraftModel], size: int) -> None:
        super().__init__()
        self.models, self.size = models, size
        sizes = [float(sum(w.numel() for w in m.draft_runner.model.parameters())) for m in models]
        self.choice = LevelChoice([n / sizes[-1] for n in sizes] + [1.0])  # until passes were measured
        self.drafts: dict[str, int] = {}
        self.last: dict[int, tuple[list[EngineLevel], tuple[int, ...], int]] = {}  # by the request's row

    @property
    def draft_runners(self) -> list[Any]:
        """All levels' model runners."""
        return [model.draft_runner for model in self.models]

    @property
    def draft_runner(self) -> Any:
        """The largest level's."""
        return self.models[-1].draft_runner

    @property
    def context_length(self) -> int:
        """Positions that all levels were trained for."""
        return min(model.context_length for model in self.models)

    def alloc_memory_pool(self, **kwargs: Any) -> None:
        """Allocate each level's KV, slot for slot like the target's."""
        for model in self.models:
            model.alloc_memory_pool(**kwargs)

    def init_attention_backends(self) -> None:
        """Plan each level's attention."""
        for model in self.models:
            model.init_attention_backends()

    def init_cuda_graphs(self) -> None:
        """Make each level's model runner ready; chains run eagerly."""
        for model in self.models:
            model.init_cuda_graphs()

    def draft(self) -> None:
        """Not used: `SpecWorker` drives the passes."""

    def draft_extend(self) -> None:
        """Not used: there is no pass after verification."""

    def choices(self) -> dict[str, Any]:
        """Return which levels take part for which program, and why, JSON-ready."""
        return self.choice.snapshot()

    def sentence(self) -> str:
        """Return the report line for start-up."""
        return f"{len(self.models)} draft models form a pyramid. {self.models[0].sentence()}"

    def read_until(self, slots: Slots) -> int:
        """Return how many leading positions the largest level has read."""
        return self.models[-1].read_until(slots)

    def forget(self, slots: Slots) -> None:
        """The target writes these slots."""
        for model in self.models:
            model.forget(slots)

    def forget_all(self) -> None:
        """``flush_cache``: every slot is free."""
        for model in self.models:
            model.forget_all()

    def verified(self, ms: float) -> None:
        """The target's pass took so long."""
        self.choice.observe_cost(len(self.models), ms)

    def chains(self, orders: list[ChainOrder], generator: torch.Generator) -> Chains:
        """Draft for each order with the levels that pay for its program; `unread` is the request's whole text."""
        chains = Chains([[] for _ in orders], [[] for _ in orders])
        self.last.clear()
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, order in enumerate(orders):
            groups.setdefault(self._active(order.program), []).append(i)
        for active, members in groups.items():
            mine = [orders[i] for i in members]
            levels = [EngineLevel(self.models[n], mine, self.size) for n in active]
            run = self._draft(active, levels, mine, generator)
            for at, i in enumerate(members):
                count = int(run.lens[at])
                chains.tokens[i] = run.tokens[at, :count].tolist()
                chains.laws[i] = [None] * count if mine[at].sampling is None else list(run.probs[at, :count])
                self.last[mine[at].pool_row] = levels, active, at
            for level, n in zip(levels, active, strict=True):
                if level.passes and not level.catchup_tokens:
                    self.choice.observe_cost(n, level.pass_ms / level.passes)
                chains.catchup_ms += level.catchup_ms
                chains.catchup_tokens += level.catchup_tokens
                chains.draft_ms += level.pass_ms
                chains.draft_steps += level.passes
                chains.draft_rows += level.rows
        return chains

    def _active(self, program: str) -> tuple[int, ...]:
        """Choose the levels of a program's next draft."""
        if len(self.drafts) > 4096:
            self.drafts.clear()
        made = self.drafts[program] = self.drafts.get(program, -1) + 1
        every = tuple(range(len(self.models)))
        return every if made < TRIAL or made % REFRESH == 0 else self.choice.choose(program)

    def _draft(
        self, active: tuple[int, ...], levels: list[EngineLevel], orders: list[ChainOrder], generator: torch.Generator
    ) -> Run:
        widths = self.choice.plan(orders[0].program, active)[1]
        judge = _Judge(orders, generator)

        def watch(lower: int, upper: int, rows: Any, accepted: list[int], made: list[int]) -> None:
            for i, right, count in zip(rows, accepted, made, strict=True):
                self._observe(orders[i].program, active[lower], active[upper], right, count)

        stages = [Stage(level, width, PASSES) for level, width in zip(levels, (1, *widths[:-1]), strict=True)]
        pyramid = Pyramid(stages, sample=judge.sample, accept=judge.accept, watch=watch)
        return pyramid.draft(
            [order.unread for order in orders],
            [order.count for order in orders],
            confidence=[order.stop_below for order in orders],
        )

    def _observe(self, program: str, lower: int, upper: int, accepted: int, made: int) -> None:
        for j in range(min(accepted + 1, made)):
            self.choice.observe_overlap(program, lower, upper, float(j < accepted))

    def commit(self, pool_row: int, read: int, end: int, guesses: list[int], accepted: int) -> int:
        """As `DraftModel.commit`, for every level; the target's verdict is an observation of the top level."""
        levels, active, at = self.last[pool_row]
        order = levels[-1].orders[at]
        host = len(order.unread) - end - 1  # guesses before the draft models'
        if accepted >= host:
            self._observe(order.program, active[-1], len(self.models), accepted - host, len(guesses) - host)
        committed = order.unread[: end + 1] + guesses[:accepted]
        return [level.settle(at, committed) for level in levels][-1]


class _Judge:
    """How tokens are drawn and judged inside the pyramid: by argmax, by a seed's noise, or by chance."""

    def __init__(self, orders: list[ChainOrder], generator: torch.Generator) -> None:
        self.samplings = [order.sampling for order in orders]
        self.generator = generator

    def sample(self, law: torch.Tensor, where: Where) -> torch.Tensor:
        """One token of each row of `law` [B, V]."""
        own = self._own(law[:, None], where)[:, 0]
        drawn = torch.multinomial(law, 1, generator=self.generator)[:, 0]
        return torch.where(self._fixed(where), own, drawn)

    def accept(
        self, p: torch.Tensor, tokens: torch.Tensor, lens: torch.Tensor, q: DraftLaw, where: Where
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `accept_chain`; greedy and seeded rows keep what their level would have said itself."""
        fixed = self._fixed(where)
        accepted, emitted = accept_greedy(tokens, lens, self._own(p, where))
        if not bool(fixed.all()):
            by_chance, drawn = accept_chain(p, tokens, lens, q, generator=self.generator)
            accepted = torch.where(fixed, accepted, by_chance)
            emitted = torch.where(fixed[:, None], emitted, drawn)
        return accepted, emitted

    def _fixed(self, where: Where) -> torch.Tensor:
        samplings = [self.samplings[i] for i in where.rows]
        return torch.tensor([s is None or s.seed is not None for s in samplings])

    def _own(self, laws: torch.Tensor, where: Where) -> torch.Tensor:
        """The tokens [B, C] that the law's own request says: argmax, or its seed's."""
        own = laws.argmax(dim=-1)
        for line, (i, position) in enumerate(zip(where.rows, where.positions, strict=True)):
            sampling = self.samplings[i]
            if sampling is not None and sampling.seed is not None:
                count = laws.shape[1]
                seeds = torch.full((count,), sampling.seed)
                own[line] = seeded_tokens(laws[line], seeds, torch.arange(position, position + count))
        return own
