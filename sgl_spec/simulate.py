"""Replays recorded traces through any controller, without a model: what would it have chosen and cost?

A trace says, for each request and source, whether the source's guess for each output token was right
("hits", given the true text before it), and what the rounds of a machine cost. So a controller can be judged
on an hour of traffic in a second, and two controllers on exactly the same traffic.

    {"machine": {"plain_ms": 20, "verify_ratio": {"1": 1.04, "2": 1.1}, "draft_step_ms": 1.5},
     "requests": [{"program": "code", "hits": {"model": "110101", "cache": "..11.."}}]}

In "hits" 1 is right, 0 wrong, and a dot means that the source had no guess. `runs` may stand in place of the
model's hits: the number of guesses in a row that would have been accepted from each token on, for drafts
whose quality falls with depth.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sgl_spec.config import MAX_DRAFTS
from sgl_spec.console import sentence
from sgl_spec.control.base import MODEL, Controller, Offer, RequestRound, RequestView, RoundRecord
from sgl_spec.errors import ConfigError
from sgl_spec.stats import Tally


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Machine(_Strict):
    """What a round costs, in milliseconds. Kernels charge by rows: those of all requests together."""

    plain_ms: float = Field(default=20.0, gt=0, description="Target pass over one row.")
    verify_ratio: dict[int, float] = Field(
        default={1: 1.04, 2: 1.1, 3: 1.2, 4: 1.25, 6: 1.5, 8: 1.75},
        description="Pass over 1 + n rows relative to one; interpolated, continued by the last slope.",
    )
    request_ms: float = Field(default=0.0, ge=0, description="Added per request beyond the first.")
    draft_step_ms: float = Field(default=1.5, ge=0, description="One draft forward.")
    draft_row_ms: float = Field(default=0.1, ge=0, description="Added per row of a draft forward.")
    overhead_ms: float = Field(default=0.5, ge=0, description="Spent outside the models per round.")

    def verify_ms(self, batch: int, extra: int) -> float:
        """The target's pass over batch + extra rows."""
        points = [(0, 1.0), *sorted(self.verify_ratio.items())]
        more = batch - 1 + extra
        (x0, y0), (x1, y1) = points[-2], points[-1]
        for left, right in itertools.pairwise(points):
            if more <= right[0]:
                (x0, y0), (x1, y1) = left, right
                break
        ratio = y0 + (y1 - y0) * (more - x0) / (x1 - x0)
        return self.plain_ms * ratio + self.request_ms * (batch - 1)

    def round_cost(self, k: int) -> float:
        """A round of k guesses at batch 1, relative to a plain one."""
        drafting = k * (self.draft_step_ms + self.draft_row_ms)
        plain = self.verify_ms(1, 0) + self.overhead_ms
        return (self.verify_ms(1, k) + drafting + self.overhead_ms) / plain


class TracedRequest(_Strict):
    """One request of a trace."""

    hits: dict[str, str] = Field(default={}, description="Source -> one of 1, 0 or . for each output token.")
    runs: list[int] = Field(default=[], description="Model guesses accepted in a row from each token on.")
    program: str = ""
    temperature: float = Field(default=0.0, ge=0)
    acceptance: dict[str, float] = Field(default={}, description="What each other source promises per guess.")

    @model_validator(mode="after")
    def _consistent(self) -> TracedRequest:
        lengths = {len(flags) for flags in self.hits.values()} | ({len(self.runs)} if self.runs else set())
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"hits and runs must cover the same tokens, not {sorted(lengths)} of them")
        if any(set(flags) - set("10.") for flags in self.hits.values()):
            raise ValueError("hits may hold only 1, 0 and dots")
        return self

    @property
    def length(self) -> int:
        """Output tokens."""
        return len(self.runs) or len(next(iter(self.hits.values())))

    @property
    def has_model(self) -> bool:
        """Whether a draft model can guess."""
        return bool(self.runs) or MODEL in self.hits

    def run(self, at: int) -> int:
        """Model guesses that would be accepted in a row from token `at` on."""
        if self.runs:
            return self.runs[at] if at < len(self.runs) else 0
        flags = self.hits.get(MODEL, "")[at:]
        return len(flags) - len(flags.lstrip("1"))

    def offers(self, at: int) -> list[tuple[Offer, bool]]:
        """Guesses of the other sources for token `at` and on, each with whether it is right."""
        ready: list[tuple[Offer, bool]] = []
        for position in range(at, min(at + MAX_DRAFTS, self.length)):
            for source, flags in self.hits.items():
                if source != MODEL and flags[position] != ".":
                    ready.append((Offer(source, self.acceptance.get(source, 0.5)), flags[position] == "1"))
                    break
            else:
                break
        return ready


class Trace(_Strict):
    """Traffic and a machine."""

    machine: Machine = Machine()
    requests: list[TracedRequest] = Field(min_length=1)


class Report(BaseModel):
    """What a controller made of a trace."""

    controller: str
    batch: int
    rounds: int
    tokens: int
    ms: float
    plain_ms: float = Field(description="The same tokens without guesses, in the same batches.")
    speedup: float
    k_histogram: dict[int, int] = Field(description="Rounds of single requests by K.")
    changes: int = Field(description="Times that a request's K differed from its last round's.")
    totals: dict[str, Any]
    controller_state: dict[str, Any]


def replay(
    controller: Controller,
    requests: Sequence[TracedRequest],
    machine: Machine,
    batch: int = 1,
    noise: Callable[[], float] = lambda: 1.0,
) -> Report:
    """Run all requests, at most `batch` at a time, through the controller.

    `noise` returns the factor by which a round's measured times deviate.
    """
    waiting = list(enumerate(requests))[::-1]
    running: list[tuple[int, TracedRequest]] = []
    done: dict[int, int] = {}
    last: dict[int, int] = {}
    tally, histogram = Tally(), dict[int, int]()
    rounds = tokens = changes = 0
    ms = plain = 0.0
    while waiting or running:
        while waiting and len(running) < batch:
            running.append(waiting.pop())
            done[running[-1][0]] = 1  # the first token comes from the prefill
        rounds += 1
        ready = [request.offers(done[rid]) for rid, request in running]
        views = [
            RequestView(
                str(rid),
                limit=request.length - done[rid] - 1,
                program=request.program,
                temperature=request.temperature,
                offers=[offer for offer, _ in offers],
                model=request.has_model,
            )
            for (rid, request), offers in zip(running, ready, strict=True)
        ]
        chosen = controller.choose(views)
        outcomes = [
            _outcome(rid, request, done[rid], k, offers)
            for (rid, request), k, offers in zip(running, chosen, ready, strict=True)
        ]
        record = _measured(machine, outcomes, noise())
        controller.observe(record)
        ms += record.total_ms
        plain_round = machine.verify_ms(len(running), 0) + machine.overhead_ms
        still: list[tuple[int, TracedRequest]] = []
        for (rid, request), outcome, k in zip(running, outcomes, chosen, strict=True):
            emitted = min(outcome.accepted + 1, request.length - done[rid])
            tokens += emitted
            plain += plain_round * emitted / len(running)
            done[rid] += emitted
            tally.add(outcome)
            histogram[k] = histogram.get(k, 0) + 1
            changes += last.get(rid, k) != k
            last[rid] = k
            if done[rid] < request.length:
                still.append((rid, request))
            else:
                controller.forget(str(rid))
                tally.end(None)
        running = still
    return Report(
        controller=controller.name,
        batch=batch,
        rounds=rounds,
        tokens=tokens,
        ms=ms,
        plain_ms=plain,
        speedup=plain / ms if ms else 1.0,
        k_histogram=dict(sorted(histogram.items())),
        changes=changes,
        totals=tally.as_dict(),
        controller_state=controller.snapshot(),
    )


def _outcome(
    rid: int, request: TracedRequest, at: int, k: int, offers: Sequence[tuple[Offer, bool]]
) -> RequestRound:
    taken = offers[:k]
    accepted = next((i for i, (_, right) in enumerate(taken) if not right), len(taken))
    drafted = k - len(taken)
    if drafted and accepted == len(taken):
        accepted += min(drafted, request.run(at + len(taken)))
    sources = [offer.source for offer, _ in taken] + [MODEL] * drafted
    return RequestRound(str(rid), k, accepted, sources)


def _measured(machine: Machine, outcomes: Sequence[RequestRound], factor: float) -> RoundRecord:
    """The round as the engine would have reported it."""
    drafted = [outcome.sources.count(MODEL) for outcome in outcomes]
    deepest = max(drafted, default=0)
    active = sum(count > 0 for count in drafted)
    extra = sum(outcome.proposed for outcome in outcomes)
    verify = machine.verify_ms(len(outcomes), extra) * factor
    rows = sum(count - 1 for count in drafted if count)
    steps = max(deepest - 1, 0)
    draft = (machine.draft_step_ms * steps + machine.draft_row_ms * rows) * factor
    read = 2 * active
    catchup = (machine.draft_step_ms + machine.draft_row_ms * active) * factor if active else 0.0
    return RoundRecord(
        outcomes,
        rows=len(outcomes) + extra,
        verify_ms=verify,
        total_ms=verify + draft + catchup + machine.overhead_ms * factor,
        draft_ms=draft,
        draft_steps=steps,
        draft_rows=rows,
        catchup_ms=catchup,
        catchup_tokens=read,
    )


def synthetic(
    survival: Sequence[float], *, requests: int = 8, length: int = 256, seed: int = 0, program: str = ""
) -> list[TracedRequest]:
    """Requests whose model guesses survive j positions with probability survival[j - 1], independently."""
    draw = random.Random(seed)  # noqa: S311 - a trace, not a secret
    depth = [*survival, 0.0]
    traced = []
    for _ in range(requests):
        coins = [draw.random() for _ in range(length)]
        runs = [next(j for j, chance in enumerate(depth) if coin >= chance) for coin in coins]
        traced.append(TracedRequest(runs=runs, program=program))
    return traced


def load(path: Path) -> Trace:
    """The trace in a JSON file; raises `ConfigError` with one sentence."""
    try:
        return Trace.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"there is no trace file {path}; without one the article's table is run.") from None
    except ValidationError as error:
        raise ConfigError(f"{path} is not a trace: {sentence(error)}") from None
