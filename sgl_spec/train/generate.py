"""Answers of the target to many prompts at once: continuous batching over the slots of a `RowModel`."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from sgl_spec.train.rows import RowModel
from sgl_spec.train.shards import Sequence


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
    model: RowModel, requests: Iterable[Request], slots: int, stop_ids: frozenset[int], top_k: int = 32
) -> Iterator[Sequence]:
    """Answer `requests` with up to `slots` at a time and yield each when it is complete.

    A sampled token is drawn from the `top_k` most probable ones, by a generator seeded with the request's
    key: an answer depends on neither its neighbours nor the order. Requests are admitted one per step, so
    a prompt's prefill shares its pass with the decode rows of the others.
    """
    waiting = iter(requests)
    free = list(range(slots))
    running: dict[int, _Answer] = {}
    while True:
        rows = [
            (a.tokens[-1], slot, len(a.request.prompt_ids) + len(a.tokens) - 1) for slot, a in running.items()
        ]
        asked = list(range(len(rows)))
        if free and (request := next(waiting, None)) is not None:
            slot = free.pop()
            running[slot] = _Answer(request, np.random.default_rng(int(request.key, 16)))
            rows += [(token, slot, position) for position, token in enumerate(request.prompt_ids)]
            asked.append(len(rows) - 1)
        if not rows:
            return
        tokens, slot_of, positions = np.array(rows, np.int32).T.copy()
        hidden = model.forward(tokens, slot_of, positions)
        ids, logp = model.top(np.ascontiguousarray(hidden[:, asked]), top_k)
        for row, slot in enumerate(list(running)):
            answer = running[slot]
            if answer.append(ids[row], logp[row]) in stop_ids or answer.finished:
                yield answer.sequence()
                del running[slot]
                free.append(slot)
