"""Answers of the target to many prompts at once: continuous batching over the slots of a `RowModel`."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from sgl_spec.train.rows import RowModel
from sgl_spec.train.shards import Sequence

_PREFILL_ROWS = 64  # admit prompts while a pass has fewer rows than one per slot and these


@dataclass(frozen=True)
class Request:
    """A prompt, already as token ids, and how to answer it (temperature 0 is greedy)."""

    task: str
    prompt_ids: tuple[int, ...]
    temperature: float
    max_new_tokens: int

    @property
    def key(self) -> str:
        """A name for this request that is the same in each run."""
        text = repr((self.task, self.prompt_ids, self.temperature, self.max_new_tokens))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass
class _Answer:
    request: Request
    rng: np.random.Generator
    tokens: list[int] = field(default_factory=list)
    top_ids: list[np.ndarray] = field(default_factory=list)
    top_logp: list[np.ndarray] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens so far, prompt included."""
        return len(self.request.prompt_ids) + len(self.tokens)

    @property
    def finished(self) -> bool:
        return len(self.tokens) >= self.request.max_new_tokens

    def append(self, ids: np.ndarray, logp: np.ndarray) -> int:
        """Choose the next token among the k candidates `ids` and remember their distribution."""
        token = int(ids[0])
        if self.request.temperature > 0:
            weight = np.exp((logp - logp[0]) / self.request.temperature)
            token = int(self.rng.choice(ids, p=weight / weight.sum()))
        self.tokens.append(token)
        self.top_ids.append(ids.copy())
        self.top_logp.append(logp.copy())
        return token

    def sequence(self) -> Sequence:
        request = self.request
        return Sequence(
            key=request.key,
            task=request.task,
            temperature=request.temperature,
            start=len(request.prompt_ids),
            tokens=np.array(request.prompt_ids + tuple(self.tokens), np.int32),
            top_ids=np.stack(self.top_ids),
            top_logp=np.stack(self.top_logp),
        )


def generate(
    model: RowModel,
    requests: Iterable[Request],
    slots: int,
    stop_ids: frozenset[int],
    *,
    shared_prefix: int = 0,
    top_k: int = 32,
) -> Iterator[Sequence]:
    """Answer `requests` with up to `slots` at a time and yield each when it is complete.

    A sampled token is drawn from the `top_k` most probable ones, by a generator seeded with the request's
    key: an answer depends on neither its neighbours nor the order. A prompt's prefill shares its pass with
    the decode rows of the others, and the prefix that all prompts share is computed once: `shared_prefix`
    tokens, kept in slot `slots` of the model, which therefore needs `slots + 1`.
    """
    waiting = iter(requests)
    free = list(range(slots))
    running: dict[int, _Answer] = {}
    prefix: tuple[int, ...] | None = None
    while True:
        rows = [(a.tokens[-1], slot, a.length - 1) for slot, a in running.items()]
        asked = list(range(len(rows)))
        while free and len(rows) < slots + _PREFILL_ROWS and (request := next(waiting, None)) is not None:
            if shared_prefix and prefix is None:
                prefix = request.prompt_ids[: min(shared_prefix, len(request.prompt_ids) - 1)]
                _run(model, [(token, slots, i) for i, token in enumerate(prefix)])
            slot, known = free.pop(), 0
            if prefix and request.prompt_ids[:-1][: len(prefix)] == prefix:
                known = len(prefix)
                model.copy_prefix(slots, slot, known)
            running[slot] = _Answer(request, np.random.default_rng(int(request.key, 16)))
            rows += [(token, slot, i) for i, token in enumerate(request.prompt_ids) if i >= known]
            asked.append(len(rows) - 1)
        if not rows:
            return
        hidden = _run(model, rows)
        ids, logp = model.top(np.ascontiguousarray(hidden[:, asked]), top_k)
        for row, slot in enumerate(list(running)):
            answer = running[slot]
            if answer.append(ids[row], logp[row]) in stop_ids or answer.finished:
                yield answer.sequence()
                del running[slot]
                free.append(slot)


def _run(model: RowModel, rows: list[tuple[int, int, int]]) -> np.ndarray:
    tokens, slots, positions = np.array(rows, np.int32).T.copy()
    return model.forward(tokens, slots, positions)


def common_prefix(requests: list[Request]) -> int:
    """How many leading tokens all `requests` share."""
    first, last = min(r.prompt_ids for r in requests), max(r.prompt_ids for r in requests)
    pairs = zip(first, last, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(last)))
