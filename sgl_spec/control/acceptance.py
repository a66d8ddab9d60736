"""How likely the next guess is: conditional acceptance a_1..a_K, learnt online, with priors.

Three levels, each the prior of the next: everything; (program, temperature band); the request. Each row of a
level keeps, per position, hits and trials (a trial is a position whose predecessors were all accepted), and
one ratio: hits over what the level above expected. Its estimate at position j is

    (hits_j + S * prior_j) / (trials_j + S),   prior_j = above_j * (hits + R) / (expected + R)

so a request first inherits its program's profile over positions, soon scales it as a whole, and learns single
positions last. Evidence fades by a factor per round. Rows are plain lists: they are
few and short, and calling NumPy for them takes longer than the sums.

The same tables count how often drafting went on to position j (early stop cuts it): `reach`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

ProgramKey = tuple[str, int]  # program, temperature band

# Before anything was seen. A draft of unknown quality is worth a look, not a gamble; further guesses are made
# only where the draft is sure of those before them: seldom, and then they are rather right.
COLD, COLD_DEEPER = 0.45, 0.6  # a at the first position, at the others
GOES_ON, GOES_DEEPER = 0.95, 0.5  # chance that drafting goes on to them
CEILING = 0.995
DEPTH_TRIALS = 2.0
MAX_PROGRAMS = 1024  # least recently used program keys are forgotten
BANDS = (0.0, 0.5, 0.85, 1.15)  # upper bounds of the temperature bands but the last


def band(temperature: float) -> int:
    """Greedy, cool, medium, warm, hot: acceptance falls as the target's temperature rises."""
    return sum(temperature > bound for bound in BANDS)


class Level(NamedTuple):
    """How a level weighs what it sees against the level above."""

    keep: float  # what a round leaves of older evidence
    strength: float  # S: trials that the prior is worth at one position
    ratio_strength: float  # R: accepted tokens that the prior ratio of 1 is worth


ALL = Level(0.9995, 3.0, 1.0)
PROGRAM = Level(0.99, 3.0, 1.0)
REQUEST = Level(0.98, 12.0, 8.0)  # requests of a program are alike until they prove otherwise


@dataclass(slots=True)
class Row:
    """Evidence of one key."""

    hits: list[float]  # per position
    trials: list[float]
    expected: float = 0.0  # hits at all positions by what the level above said


class Table:
    """Evidence of one level, by key."""

    def __init__(self, width: int, level: Level, most: int | None = None) -> None:
        self.width = width
        self.level = level
        self.most = most
        self.rows: dict[Hashable, Row] = {}  # in order of use if `most` bounds them

    def row(self, key: Hashable) -> Row:
        """The row of a key, made if it is new."""
        row = self.rows.get(key)
        if row is None:
            if self.most is not None and len(self.rows) >= self.most:
                self.drop(next(iter(self.rows)))
            row = self.rows[key] = Row([0.0] * self.width, [0.0] * self.width)
        elif self.most is not None:
            self.rows[key] = self.rows.pop(key)
        return row

    def drop(self, key: Hashable) -> None:
        """Forget a key; unknown ones are ignored."""
        self.rows.pop(key, None)

    def estimate(self, row: Row, prior: Sequence[float]) -> list[float]:
        """a per position; `prior` is the level above's."""
        _, strength, ratio_strength = self.level
        ratio = (sum(row.hits) + ratio_strength) / (row.expected + ratio_strength)
        trials, estimates = row.trials, []
        for at, hits in enumerate(row.hits):
            scaled = prior[at] * ratio
            a = (hits + strength * (scaled if scaled < CEILING else CEILING)) / (trials[at] + strength)
            estimates.append(a if a < CEILING else CEILING)
        return estimates

    def learn(
        self, row: Row, hits: Sequence[float], trials: Sequence[float], prior: Sequence[float], rounds: int
    ) -> None:
        """Add the evidence per position of so many rounds; `prior` as in `estimate`."""
        keep = self.level.keep**rounds
        for at in range(self.width):
            row.hits[at] = keep * row.hits[at] + hits[at]
            row.trials[at] = keep * row.trials[at] + trials[at]
        row.expected = keep * row.expected + sum(map(mul, trials, prior))

    def depth(self, key: Hashable) -> int:
        """Positions with at least two trials that still count."""
        row = self.rows.get(key)
        return 0 if row is None else sum(trials >= DEPTH_TRIALS for trials in row.trials)

    def seen(self, key: Hashable) -> tuple[float, float]:
        """Hits and trials at the first position that still count."""
        row = self.rows.get(key)
        return (0.0, 0.0) if row is None else (row.hits[0], row.trials[0])


class Evidence(NamedTuple):
    """What became of the draft model's guesses for one request in one round."""

    rid: str
    key: ProgramKey
    asked: int  # K chosen, less what other sources offered
    made: int  # guesses really made, <= asked
    tried: int  # those whose predecessors were all accepted
    accepted: int  # <= tried


class Acceptance:
    """The tables of all levels."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.all = Table(width, ALL)
        self.programs = Table(width, PROGRAM, MAX_PROGRAMS)
        self.reach = Table(width, PROGRAM, MAX_PROGRAMS)
        self.requests = Table(width, REQUEST)
        self.cold = [COLD, *[COLD_DEEPER] * (width - 1)]
        self.goes_on = [GOES_ON, *[GOES_DEEPER] * (width - 1)]

    def of(self, rids: Sequence[str], keys: Sequence[ProgramKey]) -> tuple[list[list[float]], list[list[float]]]:
        """a [n][width] of each request, and the chance that drafting goes on to each position [n][width].

        Requests of a program share the latter: not to be edited.
        """
        above = self.all.estimate(self.all.row(""), self.cold)
        programs = {key: self.programs.estimate(self.programs.row(key), above) for key in dict.fromkeys(keys)}
        going = {key: self.reach.estimate(self.reach.row(key), self.goes_on) for key in programs}
        accepts = [
            self.requests.estimate(self.requests.row(rid), programs[key]) for rid, key in zip(rids, keys, strict=True)
        ]
        return accepts, [going[key] for key in keys]

    def asked(self, key: ProgramKey) -> float:
        """How often a first guess of this program was asked for and judged, or not made since the draft was unsure."""
        return max(self.programs.seen(key)[1], self.reach.seen(key)[1])

    def known(self, key: ProgramKey) -> int:
        """Positions up to which estimates may be trusted: twice as far as guesses were judged, and two."""
        return 2 * max(self.programs.depth(key), self.all.depth("")) + 2

    def learn(self, evidence: Sequence[Evidence], rounds: int = 1) -> None:
        """Take in what was gathered in so many rounds. Requests that ended meanwhile teach their program."""
        if not evidence:
            return
        programs: dict[ProgramKey, list[Evidence]] = {}
        requests: dict[str, list[Evidence]] = {}
        for item in evidence:
            programs.setdefault(item.key, []).append(item)
            if item.rid in self.requests.rows:
                requests.setdefault(item.rid, []).append(item)
        everything = self.all.row("")
        above = self.all.estimate(everything, self.cold)
        middle = {key: self.programs.estimate(self.programs.row(key), above) for key in programs}
        for rid, items in requests.items():
            judged = _judged(items, self.width)
            self.requests.learn(self.requests.row(rid), *judged, middle[items[-1].key], rounds)
        for key, items in programs.items():
            self.programs.learn(self.programs.row(key), *_judged(items, self.width), above, rounds)
            self.reach.learn(self.reach.row(key), *_made(items, self.width), self.goes_on, rounds)
        self.all.learn(everything, *_judged(evidence, self.width), self.cold, rounds)

    def forget(self, rid: str) -> None:
        """The request ended; its program keeps what it taught."""
        self.requests.drop(rid)

    def to_dict(self) -> dict[str, Any]:
        """Evidence of everything and of each program, JSON-ready."""
        programs = [
            {"program": key[0], "band": key[1], **_saved(row)}  # type: ignore[index]
            for key, row in self.programs.rows.items()
        ]
        return {"all": _saved(self.all.row("")), "programs": programs}

    def load(self, values: dict[str, Any]) -> None:
        """Take over what `to_dict` wrote; raises ValueError, TypeError or KeyError if it is not that."""
        _restore(self.all.row(""), values["all"])
        for saved in values["programs"]:
            _restore(self.programs.row((str(saved["program"]), int(saved["band"]))), saved)


def _judged(evidence: Sequence[Evidence], width: int) -> tuple[list[int], list[int]]:
    """Hits and trials per position."""
    return _reached([item.accepted for item in evidence], width), _reached([item.tried for item in evidence], width)


def _made(evidence: Sequence[Evidence], width: int) -> tuple[list[int], list[int]]:
    """Per position how many guesses were made, and how many might have been: drafting came so far."""
    decided = [item.made + (item.made < item.asked) for item in evidence]
    return _reached([item.made for item in evidence], width), _reached(decided, width)


def _reached(lengths: Iterable[int], width: int) -> list[int]:
    """How many runs of such lengths, all from the first position on, reach each of `width` positions."""
    ends = [0] * (width + 1)
    for length in lengths:
        ends[length if length < width else width] += 1
    return list(accumulate(ends[:0:-1]))[::-1]


def _saved(row: Row) -> dict[str, Any]:
    used = sum(trials > 0.0 for trials in row.trials)
    return {
        "hits": [round(hits, 4) for hits in row.hits[:used]],
        "trials": [round(trials, 4) for trials in row.trials[:used]],
        "expected": round(row.expected, 4),
    }


def _restore(row: Row, saved: dict[str, Any]) -> None:
    hits, trials, expected = saved["hits"], saved["trials"], float(saved["expected"])
    if len(hits) != len(trials) or not all(isinstance(value, int | float) for value in [*hits, *trials]):
        raise ValueError("hits and trials are not lists of equal length")
    sound = all(0.0 <= hit <= trial + 1e-3 and trial < 1e9 for hit, trial in zip(hits, trials, strict=True))
    if not sound or not 0.0 <= expected < 1e9:
        raise ValueError("hits must lie between 0 and trials")
    used = min(len(hits), len(row.hits))
    row.hits[:used], row.trials[:used] = map(float, hits[:used]), map(float, trials[:used])
    row.expected = expected
