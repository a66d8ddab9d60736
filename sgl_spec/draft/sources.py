"""All host-side sources of a server behind one object: which guesses go into a request's next round.

The run with the greatest expected gain comes first (a_1 + a_1 a_2 + ..., prediction before cache when equal);
where it ends early the other source goes on after it, and after that the draft model may. So a round can take
two tokens from the prediction, three from the cache and the rest from the model:

    host = sources.draft(rid, limit)          # host.tokens, host.acceptance (conditional), host.sources
    ...verify host.tokens[:n], alone or followed by what the draft model says after them...
    sources.accept(rid, emitted, verified=n)  # counts n as proposed, the leading right ones as accepted
    report = sources.end(rid)

Every source scores its guesses against what was emitted, verified or not, so that `acceptance` stays honest
while the controller verifies none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sgl_spec.draft.base import Proposal, SourceCount, SourceOptions
from sgl_spec.draft.cache import DraftCache
from sgl_spec.draft.prediction import PredictionSource, PredictionUsage
from sgl_spec.errors import SpecError

GO_ON = 0.1  # survival of a run below which nothing is put after it
SURE = 0.8  # a prediction whose expected gain is this share of `limit` is taken without asking the cache


@dataclass(slots=True)
class RequestReport:
    """What a request's host sources did; both parts go into its meta information and usage."""

    by_source: dict[str, SourceCount] = field(default_factory=dict)
    prediction: PredictionUsage = field(default_factory=PredictionUsage)


class HostSources:
    """Prediction and cache for all requests of one worker; `cache=None` switches the cache off."""

    def __init__(self, cache: DraftCache | None = None) -> None:
        self.cache = cache
        self.prediction = PredictionSource()
        self.totals: dict[str, SourceCount] = {}  # over all requests since the start
        self._reports: dict[str, RequestReport] = {}
        self._last: dict[str, Proposal] = {}

    def __contains__(self, rid: str) -> bool:
        return rid in self._reports

    def begin(self, rid: str, context_ids: Sequence[int], options: SourceOptions) -> None:
        """Start a request whose text so far is `context_ids`."""
        if rid in self._reports:
            raise SpecError(f"Request {rid!r} has begun already; end it before it begins again.")
        self.prediction.begin(rid, context_ids, options)
        if self.cache and (options.cache or options.prompt_lookup):
            self.cache.begin(rid, context_ids, options)
        self._reports[rid] = RequestReport()

    def draft(self, rid: str, limit: int) -> Proposal:
        """Return up to `limit` guesses for the request's next positions, maybe none."""
        cache = self._cache_of(rid)
        if rid not in self.prediction:
            best = self._last[rid] = cache.draft(rid, limit) if cache else Proposal()
            return best
        best = self.prediction.draft(rid, limit)
        other: PredictionSource | DraftCache | None = cache
        if cache and best.expected_accepted() < SURE * limit:
            cached = cache.draft(rid, limit)
            if cached.expected_accepted() > best.expected_accepted():
                best, other = cached, self.prediction
        if other and best.tokens and len(best) < limit and best.survival() >= GO_ON:
            more = other.draft(rid, limit - len(best), best.tokens)
            best = Proposal(best.tokens + more.tokens, best.acceptance + more.acceptance, best.sources + more.sources)
        self._last[rid] = best
        return best

    def accept(self, rid: str, tokens: Sequence[int], verified: int = 0) -> None:
        """Append the emitted `tokens`. `verified` guesses of the last proposal were in the verify pass."""
        self._report(rid)
        last = self._last.pop(rid, None)
        if verified:
            self._count(rid, last or Proposal(), tokens, verified)
        self.prediction.accept(rid, tokens)
        if cache := self._cache_of(rid):
            cache.accept(rid, tokens)

    def _count(self, rid: str, last: Proposal, tokens: Sequence[int], verified: int) -> None:
        """Add the verified guesses to the request's counts and to the totals."""
        if verified > len(last):
            raise SpecError(f"Request {rid!r}: verified={verified} but only {len(last)} guesses were proposed.")
        report, right = self._reports[rid], True
        for i in range(verified):
            right = right and i < len(tokens) and last.tokens[i] == tokens[i]
            for counts in (report.by_source, self.totals):
                count = counts.get(last.sources[i]) or counts.setdefault(last.sources[i], SourceCount())
                count.proposed += 1
                count.accepted += right

    def report(self, rid: str) -> RequestReport:
        """Return the counts of a live request so far."""
        report = self._report(rid)
        report.prediction = self.prediction.usage(rid)
        return report

    def end(self, rid: str) -> RequestReport:
        """Forget the request and return its counts."""
        report = self.report(rid)
        del self._reports[rid]
        self._last.pop(rid, None)
        self.prediction.end(rid)
        if cache := self._cache_of(rid):
            cache.end(rid)
        return report

    def flush(self) -> None:
        """Empty the cache."""
        if self.cache:
            self.cache.flush()

    def _cache_of(self, rid: str) -> DraftCache | None:
        """Return the cache unless it is off, for all or for this request."""
        return self.cache if self.cache and rid in self.cache else None

    def _report(self, rid: str) -> RequestReport:
        try:
            return self._reports[rid]
        except KeyError:
            raise SpecError(f"Request {rid!r} has not begun or has ended; call begin() first.") from None
