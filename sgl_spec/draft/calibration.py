"""How often are guesses right? Hit statistics that turn a matched context into an acceptance estimate.

A guess falls into a cell by where its text came from (level), how long the matched context is, and how the
known continuations agree (evidence). A cell counts hits and trials; its estimate is a posterior mean whose
prior is the parent's estimate:

    estimate = (hits + WEIGHT * prior) / (trials + WEIGHT)

so that a request starts from what its program has seen, that from its namespace, and that from fixed priors.
Counts are halved at FORGET trials: a cell remembers its last few hundred guesses. Statistics of one
namespace never touch another's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

OWN, PROGRAM, NAMESPACE = 0, 1, 2  # levels: the request's own text, its program's, the namespace's
MINORITY, MAJORITY, SINGLE, UNANIMOUS = 0, 1, 2, 3  # evidence

WEIGHT = 8.0  # trials that a prior counts for
FORGET = 512
MAX_KEYS = 256  # sets of program cells kept; the least recently used goes first

_LEAST_LENGTH = (2, 3, 4, 5, 6, 8, 12, 20)  # least match length of each bucket
_N_BUCKETS = len(_LEAST_LENGTH)
_LAST = _LEAST_LENGTH[-1]
_BUCKET = tuple(sum(n >= least for least in _LEAST_LENGTH[1:]) for n in range(_LAST + 1))
# Hit rates by level, evidence and length bucket: 812 outputs of SmolLM2-135M-Instruct (chat, code and
# summarization, greedy and sampled, 190k tokens) replayed in order through an index that began empty; cells
# with few trials are smoothed. They only matter until a namespace has statistics of its own.
_PRIOR = (
    (0.15, 0.16, 0.17, 0.20, 0.25, 0.25, 0.30, 0.30),  # OWN, MINORITY
    (0.31, 0.34, 0.40, 0.40, 0.48, 0.54, 0.56, 0.60),
    (0.48, 0.59, 0.66, 0.71, 0.78, 0.85, 0.93, 0.96),
    (0.80, 0.84, 0.87, 0.90, 0.93, 0.96, 0.98, 0.99),
    (0.08, 0.10, 0.10, 0.10, 0.13, 0.13, 0.15, 0.20),  # PROGRAM, MINORITY
    (0.18, 0.21, 0.26, 0.28, 0.33, 0.38, 0.40, 0.45),
    (0.20, 0.29, 0.36, 0.43, 0.54, 0.63, 0.76, 0.84),
    (0.51, 0.58, 0.65, 0.73, 0.78, 0.86, 0.92, 0.94),
    (0.05, 0.05, 0.05, 0.08, 0.08, 0.10, 0.12, 0.15),  # NAMESPACE, MINORITY
    (0.15, 0.15, 0.15, 0.15, 0.20, 0.35, 0.40, 0.45),
    (0.20, 0.20, 0.25, 0.30, 0.35, 0.65, 0.85, 0.92),
    (0.33, 0.34, 0.38, 0.50, 0.55, 0.75, 0.85, 0.92),
)
INDEX_PRIOR = tuple(
    _PRIOR[4 * level + evidence][bucket]
    for level in (OWN, PROGRAM, NAMESPACE)
    for bucket in range(_N_BUCKETS)
    for evidence in (MINORITY, MAJORITY, SINGLE, UNANIMOUS)
)


def cell_of(level: int, length: int, agree: int, of: int) -> int:
    """Return the cell of a guess: `length` tokens matched, `agree` of `of` continuations say the same."""
    evidence = SINGLE if of == 1 else UNANIMOUS
    if agree != of:
        evidence = MAJORITY if 2 * agree >= of else MINORITY
    return (level * _N_BUCKETS + (_BUCKET[length] if length < _LAST else _N_BUCKETS - 1)) * 4 + evidence


class Cells:
    """Hits, trials and estimates of a row of cells; `prior` is a fixed one for each cell, or the parent's."""

    __slots__ = ("_hits", "_parent", "_prior", "_trials", "estimate")

    def __init__(self, prior: Sequence[float] | Cells) -> None:
        self._parent = prior if isinstance(prior, Cells) else None
        self._prior: Sequence[float] = prior.estimate if isinstance(prior, Cells) else prior
        self.estimate: list[float] = list(self._prior)
        self._hits = [0.0] * len(self.estimate)
        self._trials = [0.0] * len(self.estimate)

    def observe(self, cell: int, hit: bool) -> None:
        """Count one guess, in the parents first."""
        if self._parent:
            self._parent.observe(cell, hit)
        hits, trials = self._hits[cell] + hit, self._trials[cell] + 1
        if trials >= FORGET:
            hits, trials = hits / 2, trials / 2
        self._hits[cell], self._trials[cell] = hits, trials
        self.estimate[cell] = (hits + WEIGHT * self._prior[cell]) / (trials + WEIGHT)


class Calibration:
    """The cells of one namespace: shared ones, and a set for each (program, temperature band)."""

    def __init__(self, prior: Sequence[float] = INDEX_PRIOR) -> None:
        self._shared = Cells(prior)
        self._by_key: OrderedDict[tuple[str, int], Cells] = OrderedDict()

    def cells(self, program: str, temperature: float) -> Cells:
        """Return the cells of a program. Temperature bands: 0, up to 0.8, above."""
        key = (program, 0 if temperature == 0 else 1 if temperature <= 0.8 else 2)
        if key not in self._by_key:
            self._by_key[key] = Cells(self._shared)
            if len(self._by_key) > MAX_KEYS:
                self._by_key.popitem(last=False)
        self._by_key.move_to_end(key)
        return self._by_key[key]
