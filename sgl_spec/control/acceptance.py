"""How likely the next guess is: conditional acceptance a_1..a_K, learnt online, with priors.

Three levels, each the prior of the next: all requests of a source; (program, temperature band, source); the
request. A node keeps, per position, hits and trials (a trial is a position whose predecessors were all
accepted), and one ratio: hits over what its parent expected. Its estimate at position j is

    (hits_j + STRENGTH * prior_j) / (trials_j + STRENGTH),   prior_j = parent_j * (hits + C) / (expected + C)

so a request first inherits the program's profile over positions, soon scales it as a whole, and learns single
positions last. Old evidence fades: each observation weighs 1/decay more than the one before.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from sgl_spec.config import MAX_DRAFTS

STRENGTH = 3.0  # trials that a prior is worth at one position
RATIO_STRENGTH = 1.0  # accepted tokens that the prior ratio of 1 is worth
COLD = 0.45  # a before anything was seen: drafts of unknown quality are worth a look, not a gamble
CEILING = 0.995
HEAVY = 1e9  # weights are rescaled before they lose precision
DECAY_SOURCE, DECAY_PROGRAM, DECAY_REQUEST = 0.999, 0.99, 0.97
MAX_PROGRAMS = 1024  # least recently used program keys are forgotten

BANDS = (0.0, 0.5, 0.85, 1.15)  # upper bounds of the temperature bands but the last


def band(temperature: float) -> int:
    """Greedy, cool, medium, warm, hot: acceptance falls as the target's temperature rises."""
    return sum(temperature > bound for bound in BANDS)


@dataclass(slots=True)
class Node:
    """Evidence of one level; `parent` gives the prior, without one it is `cold`."""

    decay: float
    parent: Node | None = None
    cold: float = COLD  # without a parent: the estimate before anything was seen
    hits: list[float] = field(default_factory=list)
    trials: list[float] = field(default_factory=list)
    all_hits: float = 0.0
    all_expected: float = 0.0
    all_trials: float = 0.0
    weight: float = 1.0
    profile: list[float] = field(default_factory=list)  # cached estimates
    profile_of: tuple[int, int] = (-1, -1)  # versions that the cache was made from
    version: int = 0

    @property
    def seen(self) -> float:
        """Trials that still count."""
        return self.all_trials / self.weight

    def estimates(self, upto: int) -> list[float]:
        """a_1..a_upto."""
        stamp = (self.version, self.parent.stamp() if self.parent else 0)
        if stamp != self.profile_of or len(self.profile) < upto:
            self.profile_of = stamp
            self.profile = self._compute(max(upto, 8))
        return self.profile

    def stamp(self) -> int:
        """Changes whenever this node's or an ancestor's estimates may have changed."""
        return self.version + (self.parent.stamp() if self.parent else 0)

    def ratio(self) -> float:
        """How much better than its parent's estimate this node does."""
        w = self.weight
        return (self.all_hits / w + RATIO_STRENGTH) / (self.all_expected / w + RATIO_STRENGTH)

    def scale(self) -> float:
        """Hits over what the source itself promised (`offered` in `learn`), shrunk to the parent's scale."""
        prior = self.parent.scale() if self.parent else 1.0
        w = self.weight
        return (self.all_hits / w + RATIO_STRENGTH * prior) / (self.all_expected / w + RATIO_STRENGTH)

    def _compute(self, upto: int) -> list[float]:
        prior = self.parent.estimates(upto) if self.parent else [self.cold] * upto
        ratio, weight, known = self.ratio(), self.weight, len(self.trials)
        result = []
        for j in range(upto):
            expected = min(prior[j] * ratio, CEILING)
            if j < known:
                hit, trial = self.hits[j] / weight, self.trials[j] / weight
                expected = (hit + STRENGTH * expected) / (trial + STRENGTH)
            result.append(min(expected, CEILING))
        return result

    def learn(self, proposed: int, accepted: int, expected: list[float]) -> None:
        """`accepted` of `proposed` guesses were right; `expected` is the parent's estimate per position."""
        if proposed <= 0:
            return
        self.weight /= self.decay
        tried = min(accepted + 1, proposed)
        while len(self.trials) < tried:
            self.trials.append(0.0)
            self.hits.append(0.0)
        weight = self.weight
        for j in range(tried):
            self.trials[j] += weight
            self.all_expected += weight * expected[j]
        for j in range(accepted):
            self.hits[j] += weight
        self.all_hits += weight * accepted
        self.all_trials += weight * tried
        self.version += 1
        if weight > HEAVY:
            self._rescale()

    def _rescale(self) -> None:
        weight = self.weight
        self.hits = [value / weight for value in self.hits]
        self.trials = [value / weight for value in self.trials]
        self.all_hits /= weight
        self.all_expected /= weight
        self.all_trials /= weight
        self.weight = 1.0

    def to_dict(self) -> dict[str, Any]:
        """Evidence at weight 1, JSON-ready."""
        self._rescale()
        return {
            "hits": [round(value, 4) for value in self.hits],
            "trials": [round(value, 4) for value in self.trials],
            "expected": round(self.all_expected, 4),
        }

    def load(self, values: dict[str, Any]) -> None:
        """Take over what `to_dict` wrote; raises ValueError, TypeError or KeyError if it is not that."""
        hits, trials = [float(v) for v in values["hits"]], [float(v) for v in values["trials"]]
        expected = float(values["expected"])
        if len(hits) != len(trials) or len(hits) > MAX_DRAFTS or expected < 0.0:
            raise ValueError("hits, trials and expected do not fit together")
        if any(not 0.0 <= hit <= trial < HEAVY for hit, trial in zip(hits, trials, strict=True)):
            raise ValueError("hits must lie between 0 and trials")
        self.hits, self.trials, self.weight = hits, trials, 1.0
        self.all_hits, self.all_trials, self.all_expected = sum(hits), sum(trials), expected
        self.version += 1


ProgramKey = tuple[str, int, str]  # program, temperature band, source


class Acceptance:
    """The nodes of all sources, programs and running requests."""

    def __init__(self) -> None:
        self.sources: dict[str, Node] = {}
        self.programs: OrderedDict[ProgramKey, Node] = OrderedDict()
        self.requests: dict[tuple[str, str], Node] = {}

    def program(self, key: ProgramKey) -> Node:
        """The node of a program, made if it is new."""
        node = self.programs.get(key)
        if node is None:
            root = self.sources.get(key[2])
            if root is None:
                root = self.sources[key[2]] = Node(DECAY_SOURCE)
            node = self.programs[key] = Node(DECAY_PROGRAM, root)
            if len(self.programs) > MAX_PROGRAMS:
                self.programs.popitem(last=False)
        else:
            self.programs.move_to_end(key)
        return node

    def request(self, rid: str, key: ProgramKey) -> Node:
        """The node of a running request under one source, made if it is new."""
        node = self.requests.get((rid, key[2]))
        if node is None:
            node = self.requests[rid, key[2]] = Node(DECAY_REQUEST, self.program(key))
        return node

    def learn(self, rid: str, key: ProgramKey, proposed: int, accepted: int, offered: list[float]) -> None:
        """One request's guesses by one source. `offered`: the source's own estimates, empty for the model."""
        node: Node | None = self.request(rid, key)
        while node is not None:
            expected = offered or (node.parent.estimates(proposed) if node.parent else [node.cold] * proposed)
            node.learn(proposed, accepted, expected)
            node = node.parent

    def forget(self, rid: str) -> None:
        """The request ended; its program keeps what it taught."""
        for key in [key for key in self.requests if key[0] == rid]:
            del self.requests[key]
