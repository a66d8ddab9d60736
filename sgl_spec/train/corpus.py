"""The training text in memory, its hot tokens, and its batches in an order that only the seed decides."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sgl_spec.errors import ConfigError
from sgl_spec.train.shards import Sequence


@dataclass(frozen=True)
class Batch:
    """Packed sequences: `tokens` int64 `[N]`, `lengths`, and the labelled positions of the packed rows.

    Row `rows[i]` predicts the token whose distribution is `top_ids[i]`, `top_logp[i]` (`[R, k]`).
    """

    tokens: np.ndarray
    lengths: list[int]
    rows: np.ndarray
    top_ids: np.ndarray
    top_logp: np.ndarray


class Corpus:
    """All sequences of a training run."""

    def __init__(self, sequences: list[Sequence]) -> None:
        self.sequences = [s for s in sequences if len(s.tokens) > s.start]
        if not self.sequences:
            raise ConfigError("the training text is empty; generate some before training.")

    @cached_property
    def answer_tokens(self) -> int:
        """Labelled positions in all."""
        return sum(len(s.tokens) - s.start for s in self.sequences)

    def hot_tokens(self, size: int, vocabulary: int) -> list[int]:
        """The `size` token ids with the largest expected count under the target, sorted by id.

        Expected counts (sums of probabilities) rank rare tokens better than the counts of a small sample;
        ties, such as tokens never seen, go to the smaller id, which BPE merged earlier.
        """
        expected = np.zeros(vocabulary, np.float64)
        for s in self.sequences:
            np.add.at(expected, s.top_ids.ravel(), np.exp(s.top_logp.ravel(), dtype=np.float64))
        best = np.argsort(-expected, kind="stable")[: min(size, vocabulary)]
        return sorted(int(i) for i in best)

    def batches(self, tokens_per_step: int, seed: int, first_step: int = 0) -> Iterator[Batch]:
        """Endless batches of about `tokens_per_step` answer tokens, epoch after epoch.

        The order is a function of the seed and the epoch alone, so a run that resumes at `first_step` sees
        what an uninterrupted one would have seen.
        """
        step, epoch = 0, 0
        while True:
            order = np.random.default_rng([seed, epoch]).permutation(len(self.sequences))
            for group in self._groups(order, tokens_per_step):
                if step >= first_step:
                    yield pack([self.sequences[i] for i in group])
                step += 1
            epoch += 1

    def _groups(self, order: np.ndarray, tokens_per_step: int) -> Iterator[list[int]]:
        group: list[int] = []
        size = 0
        for i in order:
            group.append(int(i))
            size += len(self.sequences[i].tokens) - self.sequences[i].start
            if size >= tokens_per_step:
                yield group
                group, size = [], 0
        if group:
            yield group


def pack(sequences: list[Sequence]) -> Batch:
    """Put sequences behind each other; the last token of each is only a label, so it is left out."""
    lengths = [len(s.tokens) - 1 for s in sequences]
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    rows = [o + np.arange(s.start - 1, n) for s, o, n in zip(sequences, offsets, lengths, strict=True)]
    return Batch(
        tokens=np.concatenate([s.tokens[:-1] for s in sequences]).astype(np.int64),
        lengths=lengths,
        rows=np.concatenate(rows),
        top_ids=np.concatenate([s.top_ids for s in sequences]).astype(np.int64),
        top_logp=np.concatenate([s.top_logp for s in sequences]),
    )
