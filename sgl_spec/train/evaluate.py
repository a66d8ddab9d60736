"""Acceptance of a draft on the target's greedy answers, computed without running the engine.

With greedy decoding the j-th drafted token can be accepted only if the ones before it were, and then the
draft has read exactly the target's text. So one pass over the answers tells all: position i matches if the
draft's most probable token after the true text up to i is the target's token.
"""

from dataclasses import dataclass

import numpy as np
import torch

from sgl_spec.train.corpus import pack
from sgl_spec.train.shards import Sequence
from sgl_spec.train.student import Student

POSITIONS = 5
_BATCH = 16  # sequences per pass


@dataclass(frozen=True)
class TaskScore:
    """One task's score over all answer tokens.

    `acceptance` is matches per token; `by_position[j]` the share of drafted tokens j + 1 that are accepted,
    given that all before them were; `coverage` the share of tokens that the hot head holds at all.
    """

    tokens: int
    acceptance: float
    by_position: tuple[float, ...]
    coverage: float


def matches(student: Student, sequences: list[Sequence]) -> list[np.ndarray]:
    """For each sequence a bool array over its answer: the draft's most probable token is the target's."""
    found: list[np.ndarray] = []
    with torch.inference_mode():
        for low in range(0, len(sequences), _BATCH):
            part = sequences[low : low + _BATCH]
            batch = pack(part)
            tokens = torch.from_numpy(batch.tokens).to(student.embedding.device)
            hidden = student(tokens, batch.lengths)[torch.from_numpy(batch.rows).to(tokens.device)]
            best = [student.hot_ids[(rows @ student.head.T).argmax(dim=1)] for rows in hidden.split(512)]
            guess = torch.cat(best).cpu().numpy()
            ends = np.cumsum([len(s.tokens) - s.start for s in part])
            for s, own in zip(part, np.split(guess, ends[:-1]), strict=True):
                found.append(own == s.tokens[s.start :])
    return found


def score(student: Student, sequences: list[Sequence]) -> dict[str, TaskScore]:
    """The score of each task among `sequences`, which must be greedy answers."""
    by_task: dict[str, TaskScore] = {}
    hit_lists = matches(student, sequences)
    hot = np.zeros(len(student.embedding), bool)
    hot[student.hot_ids.cpu().numpy()] = True
    for task in sorted({s.task for s in sequences}):
        own = [(s, hits) for s, hits in zip(sequences, hit_lists, strict=True) if s.task == task]
        answers = np.concatenate([s.tokens[s.start :] for s, _ in own])
        hits = [hits for _, hits in own]
        by_task[task] = TaskScore(
            tokens=len(answers),
            acceptance=float(np.concatenate(hits).mean()),
            by_position=_by_position(hits),
            coverage=float(hot[answers].mean()),
        )
    return by_task


def _by_position(hits: list[np.ndarray]) -> tuple[float, ...]:
    """Share of accepted tokens among those drafted at positions 1..K whose predecessors were accepted."""
    rates = []
    for j in range(POSITIONS):
        tried = won = 0
        for own in hits:
            if len(own) <= j:
                continue
            before = np.ones(len(own) - j, bool)
            for i in range(j):
                before &= own[i : len(own) - j + i]
            tried += int(before.sum())
            won += int((before & own[j:]).sum())
        rates.append(won / tried if tried else 0.0)
    return tuple(rates)
