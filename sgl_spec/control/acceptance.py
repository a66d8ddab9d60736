"""How likely the next guess is: conditional acceptance a_1..a_K, learnt online, with priors.

Three levels, each the prior of the next: everything; (program, temperature band); the request. Each row of a
level keeps, per position, hits and trials (a trial is a position whose predecessors were all accepted), and
one ratio: hits over what the level above expected. Its estimate at position j is

    (hits_j + S * prior_j) / (trials_j + S),   prior_j = above_j * (hits + R) / (expected + R)

so a request first inherits its program's profile over positions, soon scales it as a whole, and learns single
positions last. Evidence fades by a factor per round. All rows of a level are one numpy table.

The same tables count how often drafting went on to position j (early stop cuts it): `reach`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
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


class Table:
    """Evidence of the rows of one level, by key. Rows of dropped keys are used again."""

    def __init__(self, width: int, level: Level, most: int | None = None) -> None:
        self.level = level
        self.most = most
        self.rows: dict[Hashable, int] = {}  # in order of use if `most` bounds them
        self.free: list[int] = []
        self.hits: Floats = np.zeros((8, width))
        self.trials: Floats = np.zeros((8, width))
        self.expected: Floats = np.zeros(8)

    def row(self, key: Hashable) -> int:
        """The row of a key, made if it is new."""
        at = self.rows.get(key)
        if at is not None:
            if self.most is not None:
                self.rows[key] = self.rows.pop(key)
            return at
        if self.most is not None and len(self.rows) >= self.most:
            self.drop(next(iter(self.rows)))
        at = self.free.pop() if self.free else len(self.rows)
        if at == len(self.expected):
            self.hits = np.vstack([self.hits, np.zeros_like(self.hits)])
            self.trials = np.vstack([self.trials, np.zeros_like(self.trials)])
            self.expected = np.concatenate([self.expected, np.zeros_like(self.expected)])
        self.rows[key] = at
        return at

    def drop(self, key: Hashable) -> None:
        """Forget a key; unknown ones are ignored."""
        at = self.rows.pop(key, None)
        if at is not None:
            self.hits[at] = self.trials[at] = self.expected[at] = 0.0
            self.free.append(at)

    def estimate(self, rows: Ints, prior: Floats) -> Floats:
        """a per row and position; `prior` [len(rows), width] is the level above's."""
        hits, trials = self.hits[rows], self.trials[rows]
        _, strength, ratio_strength = self.level
        ratio = (hits.sum(axis=1) + ratio_strength) / (self.expected[rows] + ratio_strength)
        scaled = np.minimum(prior * ratio[:, None], CEILING)
        return np.minimum((hits + strength * scaled) / (trials + strength), CEILING)

    def learn(self, rows: Ints, hits: Floats, trials: Floats, prior: Floats, rounds: int) -> None:
        """Add the evidence [n, width] of so many rounds to distinct rows; `prior` as in `estimate`."""
        keep = self.level.keep**rounds
        self.hits[rows] = keep * self.hits[rows] + hits
        self.trials[rows] = keep * self.trials[rows] + trials
        self.expected[rows] = keep * self.expected[rows] + (trials * prior).sum(axis=1)

    def depth(self, key: Hashable) -> int:
        """Positions with at least two trials that still count."""
        at = self.rows.get(key)
        return 0 if at is None else int(np.count_nonzero(self.trials[at] >= DEPTH_TRIALS))

    def seen(self, key: Hashable) -> tuple[float, float]:
        """Hits and trials at the first position that still count."""
        at = self.rows.get(key)
        return (0.0, 0.0) if at is None else (float(self.hits[at, 0]), float(self.trials[at, 0]))


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
        self.all.row("")
        self.programs = Table(width, PROGRAM, MAX_PROGRAMS)
        self.reach = Table(width, PROGRAM, MAX_PROGRAMS)
        self.requests = Table(width, REQUEST)
        self.columns = np.arange(width)
        self.cold = np.where(self.columns == 0, COLD, COLD_DEEPER)[None]
        self.goes_on = np.where(self.columns == 0, GOES_ON, GOES_DEEPER)[None]
        self._last: tuple[object, Floats, Floats] | None = None  # of the last `of`, while no evidence came in

    def of(self, rids: Sequence[str], keys: Sequence[ProgramKey]) -> tuple[Floats, Floats]:
        """a [n, width] of each request, and the chance that drafting goes on to each position [n, width]."""
        asked = (tuple(rids), tuple(keys))
        if self._last is None or self._last[0] != asked:
            programs = np.array([self.programs.row(key) for key in keys])
            above = self.all.estimate(_FIRST, self.cold)
            middle = self.programs.estimate(programs, above)
            rows = np.array([self.requests.row(rid) for rid in rids])
            going = self.reach.estimate(np.array([self.reach.row(key) for key in keys]), self.goes_on)
            self._last = asked, self.requests.estimate(rows, middle), going
        return self._last[1].copy(), self._last[2].copy()

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
        self._last = None
        numbers = np.array([item[2:] for item in evidence])
        asked, made, tried, accepted = (self.columns < column[:, None] for column in numbers.T)
        decided = asked & np.hstack([made[:, :1] | True, made[:, :-1]])  # positions at which drafting might stop
        programs, of_program = _groups([item.key for item in evidence])
        rows = np.array([self.programs.row(key) for key in programs])
        above = self.all.estimate(_FIRST, self.cold)
        middle = self.programs.estimate(rows, above)
        alive = {item.rid: item.key for item in evidence if item.rid in self.requests.rows}
        if alive:
            of_request = np.array([[item.rid == rid for item in evidence] for rid in alive], dtype=float)
            places = np.array([programs.index(key) for key in alive.values()])
            mine = np.array([self.requests.rows[rid] for rid in alive])
            self.requests.learn(mine, of_request @ accepted, of_request @ tried, middle[places], rounds)
        self.programs.learn(rows, of_program @ accepted, of_program @ tried, above, rounds)
        self.all.learn(_FIRST, accepted.sum(axis=0)[None], tried.sum(axis=0)[None], self.cold, rounds)
        again = np.array([self.reach.row(key) for key in programs])
        self.reach.learn(again, of_program @ made, of_program @ decided, self.goes_on, rounds)

    def forget(self, rid: str) -> None:
        """The request ended; its program keeps what it taught."""
        self._last = None
        self.requests.drop(rid)

    def to_dict(self) -> dict[str, Any]:
        """Evidence of everything and of each program, JSON-ready."""
        programs = [
            {"program": key[0], "band": key[1], **_saved(self.programs, at)}  # type: ignore[index]
            for key, at in self.programs.rows.items()
        ]
        return {"all": _saved(self.all, 0), "programs": programs}

    def load(self, values: dict[str, Any]) -> None:
        """Take over what `to_dict` wrote; raises ValueError, TypeError or KeyError if it is not that."""
        self._last = None
        _restore(self.all, 0, values["all"])
        for saved in values["programs"]:
            key = (str(saved["program"]), int(saved["band"]))
            _restore(self.programs, self.programs.row(key), saved)


_FIRST = np.zeros(1, dtype=np.int64)


def _groups(keys: Sequence[ProgramKey]) -> tuple[list[ProgramKey], Floats]:
    """The distinct keys, and a matrix [distinct, len(keys)] of 1 where a key belongs to it."""
    distinct = list(dict.fromkeys(keys))
    return distinct, np.array([[key == one for key in keys] for one in distinct], dtype=float)


def _saved(table: Table, at: int) -> dict[str, Any]:
    used = int(np.count_nonzero(table.trials[at]))
    return {
        "hits": table.hits[at, :used].round(4).tolist(),
        "trials": table.trials[at, :used].round(4).tolist(),
        "expected": round(float(table.expected[at]), 4),
    }


def _restore(table: Table, at: int, saved: dict[str, Any]) -> None:
    hits, trials = np.array(saved["hits"], dtype=float), np.array(saved["trials"], dtype=float)
    if hits.ndim != 1 or hits.shape != trials.shape:
        raise ValueError("hits and trials are not lists of equal length")
    sound = (hits >= 0.0) & (hits <= trials + 1e-3) & (trials < 1e9)
    expected = float(saved["expected"])
    if not bool(sound.all()) or not 0.0 <= expected < 1e9:
        raise ValueError("hits must lie between 0 and trials")
    used = min(len(hits), table.hits.shape[1])
    table.hits[at, :used], table.trials[at, :used] = hits[:used], trials[:used]
    table.expected[at] = expected
