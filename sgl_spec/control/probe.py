"""Looking again at a draft that did not pay: rarely, cheaply, counted, and under a budget.

A program whose best K is 0 learns nothing any more, so it is probed: one request drafts a few tokens in one
round, and in `FOLLOW_UPS` more while all is accepted or little is known. Pauses between probes stay at
`SHORTEST` rounds while the program may still turn out to pay, and double up to `LONGEST` once the evidence is
against it. All probes of a server share one account: what they cost above plain rounds may not exceed a small
head start plus a share of all time. A draft that has not read a long prompt must do so before its first guess, which
can take as long as many rounds: that has an account of its own with a quarter of the share, whose first reading is
free (a draft must be tried once). So the loss is bounded whatever requests come in.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from sgl_spec.control.acceptance import MAX_PROGRAMS, ProgramKey

SHORTEST, LONGEST = 24, 1536  # rounds between probes
HEAD_START = 4.0  # plain rounds that may be lost before any time has passed
READS = 0.25  # of the share, for reading long prompts
FOLLOW_UPS = 2  # rounds by which a probe goes on while it is promising or undecided


@dataclass(slots=True)
class Account:
    """Milliseconds spent, and what may be spent."""

    share: float
    elapsed: float = 0.0
    spent: float = 0.0

    def allows(self, plain_ms: float) -> bool:
        """Whether another probe may be paid for: the first, then within a head start of plain rounds and the share."""
        afforded = self.spent < HEAD_START * plain_ms + self.share * self.elapsed
        return self.share > 0.0 and (afforded or self.spent == 0.0)


@dataclass(slots=True)
class Pause:
    """Of one program."""

    wait: int = SHORTEST
    last: int = 0  # round of the last probe, or of the last draft
    streak: int = 0  # rounds that this probe went on


@dataclass(slots=True)
class Prober:
    """When to probe which program."""

    account: Account
    reads: Account = field(init=False)  # of long prompts
    pauses: OrderedDict[ProgramKey, Pause] = field(default_factory=OrderedDict)
    probes: int = 0
    hits: int = 0  # probes with at least one token accepted

    def __post_init__(self) -> None:
        self.reads = Account(READS * self.account.share)

    def passed(self, ms: float) -> None:
        """A round took so long."""
        self.account.elapsed += ms
        self.reads.elapsed += ms

    def pause(self, key: ProgramKey) -> Pause:
        """The program's state, made if it is new."""
        state = self.pauses.get(key)
        if state is None:
            state = self.pauses[key] = Pause()
            if len(self.pauses) > MAX_PROGRAMS:
                self.pauses.popitem(last=False)
        else:
            self.pauses.move_to_end(key)
        return state

    def due(self, key: ProgramKey, now: int, plain_ms: float) -> bool:
        """Whether round `now` should probe a program that decodes plainly."""
        state = self.pause(key)
        return (state.streak > 0 or now >= state.last + state.wait) and self.account.allows(plain_ms)

    def result(self, key: ProgramKey, now: int, proposed: int, accepted: int, *, hopeless: bool) -> bool:
        """A probe of round `now` came back; `hopeless`: what is known by now speaks against the draft.

        Returns whether the probe goes on in the next round.
        """
        state = self.pause(key)
        self.probes += 1
        self.hits += accepted > 0
        state.last = now
        if state.streak < FOLLOW_UPS and (0 < proposed == accepted or not hopeless):
            state.streak += 1
            return True
        state.streak = 0
        state.wait = min(2 * state.wait, LONGEST) if hopeless else SHORTEST
        return False

    def works(self, key: ProgramKey, now: int) -> None:
        """The program drafts again: the next time that it stops, pauses start short."""
        state = self.pause(key)
        state.wait, state.last, state.streak = SHORTEST, now, 0
