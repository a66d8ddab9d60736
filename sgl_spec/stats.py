"""Counts, and the only definitions of the two figures that everybody quotes.

acceptance rate    accepted / proposed: drafted tokens that were verified and kept over those verified
acceptance length  tokens per verify: 1 + accepted / rounds with guesses, the bonus token included

A plain round (K=0) proposes nothing and is no verify: it changes neither. `tokens_per_step` counts all
rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sgl_spec.control.base import MODEL, RequestRound

LOW_ACCEPTANCE = 0.1
LOW_ROUNDS = 100


def acceptance_rate(accepted: int, proposed: int) -> float | None:
    """accepted / proposed; none if nothing was proposed."""
    return accepted / proposed if proposed else None


def acceptance_length(accepted: int, verifies: int) -> float | None:
    """Tokens per verify, the bonus token included; none without a verify."""
    return 1.0 + accepted / verifies if verifies else None


def _sources(counts: dict[str, list[int]]) -> dict[str, dict[str, Any]]:
    return {
        source: {"proposed": made, "accepted": kept, "draft_acceptance_rate": acceptance_rate(kept, made)}
        for source, (made, kept) in counts.items()
    }


@dataclass(slots=True)
class RequestStats:
    """Of one request; `as_dict` is its `meta_info["sgl_spec"]`."""

    rounds: int = 0
    plain_rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    by_length: dict[int, list[int]] = field(default_factory=dict)  # K -> rounds by accepted 0..K
    by_source: dict[str, list[int]] = field(default_factory=dict)  # source -> [proposed, accepted]
    reason: str | None = None
    cached: tuple[int, int] = (0, 0)  # prompt tokens found in the prefix cache: by the target, by the draft too

    def add(self, outcome: RequestRound) -> None:
        """Count one round."""
        k, kept = outcome.proposed, outcome.accepted
        if not 0 <= kept <= k:
            raise ValueError(f"accepted={kept} must lie between 0 and proposed={k}")
        self.rounds += 1
        self.plain_rounds += k == 0
        self.proposed += k
        self.accepted += kept
        row = self.by_length.get(k)
        if row is None:
            row = self.by_length[k] = [0] * (k + 1)
        row[kept] += 1
        for source, at in zip(outcome.sources or (MODEL,) * k, range(k), strict=True):
            counts = self.by_source.setdefault(source, [0, 0])
            counts[0] += 1
            counts[1] += at < kept

    def not_speculated(self, reason: str) -> None:
        """Say once why this request is decoded plainly."""
        self.reason = self.reason or reason

    @property
    def histogram(self) -> list[int]:
        """Rounds with guesses, by the number of accepted ones."""
        rows = [row for k, row in self.by_length.items() if k]
        width = max(map(len, rows), default=1)
        return [sum(row[kept] for row in rows if kept < len(row)) for kept in range(width)]

    def as_dict(self) -> dict[str, Any]:
        """The fields of the contract, JSON-ready."""
        return {
            "num_spec_steps": self.rounds - self.plain_rounds,
            "num_plain_steps": self.plain_rounds,
            "num_draft_tokens": self.proposed,
            "num_accepted_draft_tokens": self.accepted,
            "mean_acceptance_length": acceptance_length(self.accepted, self.rounds - self.plain_rounds),
            "tokens_per_step": acceptance_length(self.accepted, self.rounds),
            "draft_acceptance_rate": acceptance_rate(self.accepted, self.proposed),
            "acceptance_histogram": self.histogram,
            "acceptance_histogram_by_draft_length": {str(k): row for k, row in sorted(self.by_length.items())},
            "accepted_by_source": _sources(self.by_source),
            "num_cached_tokens_target": self.cached[0],
            "num_cached_tokens_draft": self.cached[1],
            "reason_not_speculated": self.reason,
        }


@dataclass(slots=True)
class Tally:
    """Sums over many rounds, by position and by source."""

    requests: int = 0
    rounds: int = 0
    plain_rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    tried: list[int] = field(default_factory=list)  # per position: guesses whose predecessors were accepted
    kept: list[int] = field(default_factory=list)
    by_source: dict[str, list[int]] = field(default_factory=dict)
    not_speculated: dict[str, int] = field(default_factory=dict)  # reason -> requests
    prefix: list[int] = field(default_factory=lambda: [0, 0, 0])  # prompt tokens; cached for target; for draft too

    def add(self, outcome: RequestRound) -> None:
        """Count one round of one request."""
        k, kept = outcome.proposed, outcome.accepted
        self.rounds += 1
        self.plain_rounds += k == 0
        self.proposed += k
        self.accepted += kept
        while len(self.tried) < k:
            self.tried.append(0)
            self.kept.append(0)
        for at in range(min(kept + 1, k)):
            self.tried[at] += 1
            self.kept[at] += at < kept
        for source, at in zip(outcome.sources or (MODEL,) * k, range(k), strict=True):
            counts = self.by_source.setdefault(source, [0, 0])
            counts[0] += 1
            counts[1] += at < kept

    def end(self, reason: str | None) -> None:
        """Count a finished request and, if it was not speculated, why."""
        self.requests += 1
        if reason is not None:
            self.not_speculated[reason] = self.not_speculated.get(reason, 0) + 1

    def begin(self, prompt: int, cached: tuple[int, int]) -> None:
        """Count a request's prompt tokens, and those found in the prefix cache by the target and the draft."""
        for at, count in enumerate((prompt, *cached)):
            self.prefix[at] += count

    def merge(self, other: Tally) -> None:
        """Add another tally (of another server or shard) to this one."""
        self.requests += other.requests
        self.rounds += other.rounds
        self.plain_rounds += other.plain_rounds
        self.proposed += other.proposed
        self.accepted += other.accepted
        for mine, theirs in ((self.tried, other.tried), (self.kept, other.kept)):
            mine.extend([0] * (len(theirs) - len(mine)))
            for at, value in enumerate(theirs):
                mine[at] += value
        for source, (made, kept) in other.by_source.items():
            counts = self.by_source.setdefault(source, [0, 0])
            counts[0] += made
            counts[1] += kept
        for reason, count in other.not_speculated.items():
            self.not_speculated[reason] = self.not_speculated.get(reason, 0) + count
        self.begin(other.prefix[0], (other.prefix[1], other.prefix[2]))

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "requests": self.requests,
            "rounds": self.rounds,
            "plain_share": self.plain_rounds / self.rounds if self.rounds else None,
            "num_draft_tokens": self.proposed,
            "num_accepted_draft_tokens": self.accepted,
            "draft_acceptance_rate": acceptance_rate(self.accepted, self.proposed),
            "mean_acceptance_length": acceptance_length(self.accepted, self.rounds - self.plain_rounds),
            "tokens_per_step": acceptance_length(self.accepted, self.rounds),
            "conditional_acceptance_by_position": [
                acceptance_rate(kept, tried) for tried, kept in zip(self.tried, self.kept, strict=True)
            ],
            "by_source": _sources(self.by_source),
            "not_speculated": dict(self.not_speculated),
            "prefix_cache": dict(zip(("prompt_tokens", "target_tokens", "draft_tokens"), self.prefix, strict=True)),
        }


@dataclass(slots=True)
class SpecStats:
    """Of a server: one tally over all, one per program, and the low-acceptance warning."""

    total: Tally = field(default_factory=Tally)
    programs: dict[str, Tally] = field(default_factory=dict)
    probes: int = 0
    low_rounds: int = 0  # rounds with guesses in a row whose moving acceptance is low
    recent_rate: float = 0.5  # moving average over rounds with guesses
    warned: bool = False

    def add(self, program: str, outcome: RequestRound) -> None:
        """Count one round of one request."""
        self.total.add(outcome)
        self._program(program).add(outcome)

    def begin(self, program: str, prompt: int, cached: tuple[int, int]) -> None:
        """A request's first round: see `Tally.begin`."""
        self.total.begin(prompt, cached)
        self._program(program).begin(prompt, cached)

    def end(self, program: str, reason: str | None = None) -> None:
        """A request finished."""
        self.total.end(reason)
        self._program(program).end(reason)

    def round(self, outcomes: Sequence[RequestRound]) -> str | None:
        """Watch one round of the batch; returns a warning sentence once, when acceptance stays low."""
        proposed = sum(outcome.proposed for outcome in outcomes)
        if not proposed:
            return None
        rate = sum(outcome.accepted for outcome in outcomes) / proposed
        self.recent_rate += 0.1 * (rate - self.recent_rate)
        self.low_rounds = self.low_rounds + 1 if self.recent_rate < LOW_ACCEPTANCE else 0
        if self.low_rounds < LOW_ROUNDS or self.warned:
            return None
        self.warned = True
        return (
            f"Acceptance of drafted tokens stayed under {LOW_ACCEPTANCE} for {LOW_ROUNDS} rounds "
            f"(now {self.recent_rate:.3f}): the draft was probably not made for this target, was loaded with "
            "missing weights, has another chat template or token order, or the text is sampled hot; "
            "run `sgl-spec doctor` with both models, or start without a draft."
        )

    def merge(self, other: SpecStats) -> None:
        """Add another server's counts to these."""
        self.total.merge(other.total)
        self.probes += other.probes
        for program, tally in other.programs.items():
            self._program(program).merge(tally)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            **self.total.as_dict(),
            "probes": self.probes,
            "programs": {name: tally.as_dict() for name, tally in self.programs.items()},
        }

    def _program(self, name: str) -> Tally:
        tally = self.programs.get(name)
        if tally is None:
            tally = self.programs[name] = Tally()
        return tally
