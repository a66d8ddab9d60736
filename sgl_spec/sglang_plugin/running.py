"""The requests that are running: followed from their first round to their last output."""

from dataclasses import asdict
from typing import Any

from sgl_spec.config import SpecConfig
from sgl_spec.control.base import Controller, Offer, RequestRound, RequestView
from sgl_spec.draft.base import SourceOptions
from sgl_spec.draft.sources import HostSources
from sgl_spec.sglang_plugin.requests import Track, is_health_check, track
from sgl_spec.stats import RequestStats, SpecStats
from sgl_spec.unmet import warnings

SWEEP_ABOVE = 64  # tracks of aborted requests are dropped when more than this many are kept


class Running:
    """Each running request's `Track`, its host-side sources and its statistics."""

    def __init__(self, config: SpecConfig, sources: HostSources, controller: Controller, tokenizer: Any) -> None:
        self.config = config
        self.sources = sources
        self.controller = controller
        self.tokenizer = tokenizer
        self.stats = SpecStats()
        self.tracks: dict[str, Track] = {}

    def __len__(self) -> int:
        return len(self.tracks)

    def track(self, req: Any) -> Track:
        """Return the request's state, brought up to date with what was emitted since."""
        known = self.tracks.get(req.rid)
        if known is None or known.req() is not req:
            if known is not None:  # an aborted request left its state, and a new one took its id
                self.close(known)
            self._sweep()
            known = self.tracks[req.rid] = track(req)
            self._begin_sources(known, req)
        new = req.output_ids[known.seen :]
        if known.penalties is not None:
            known.penalties.add(new)
        self.sources.accept(req.rid, new, verified=known.verified)
        known.seen = len(req.output_ids)
        return known

    def _begin_sources(self, known: Track, req: Any) -> None:
        options, prediction = known.options, known.options.prediction
        if isinstance(prediction, str):
            prediction = tuple(self.tokenizer.encode(prediction, add_special_tokens=False))
        self.sources.begin(
            req.rid,
            req.origin_input_ids,
            SourceOptions(
                namespace=options.namespace,
                program=options.program,
                cache=options.cache,
                prompt_lookup=options.prompt_lookup,
                prediction=prediction or () if self.config.prediction else (),
                temperature=known.temperature,
            ),
        )
        known.begun = True

    def view(self, known: Track, req: Any, n: int, columns: int, context: int) -> RequestView:
        """Return what the controller may know: limits, and what the host-side sources offer.

        n: committed length. columns: positions that a request may have. context: that the draft model may read.
        """
        assert known.read is not None
        limit = self._limit(known, req, columns - n - 1)
        known.offer = self.sources.draft(req.rid, limit)
        return RequestView(
            rid=req.rid,
            limit=limit,
            program=known.options.program,
            temperature=known.temperature,
            offers=list(map(Offer, known.offer.sources, known.offer.acceptance)),
            model=known.options.draft_model and n < context,
            pending=n + 1 - known.read,
            context=n,
            to_come=req.sampling_params.max_new_tokens - len(req.output_ids),
            options=known.options,
        )

    def _limit(self, known: Track, req: Any, room: int) -> int:
        """Most guesses that could still be emitted, with the bonus token after them."""
        if known.reason is not None:
            return 0
        to_come = req.sampling_params.max_new_tokens - len(req.output_ids)
        cap = known.options.num_speculative_tokens
        return max(0, min(self.config.k_max, to_come - 1, room, self.config.k_max if cap is None else cap))

    def prefix(self, known: Track, req: Any, read: int) -> None:
        """Note what a request's first round found in the prefix cache; `read`: positions that the draft has read."""
        if not known.stats.rounds:
            known.stats.cached = req.cached_tokens, min(read, req.cached_tokens)
            self.stats.begin(known.options.program, len(req.origin_input_ids), known.stats.cached)

    def count(self, outcome: RequestRound, known: Track) -> None:
        """Add a round of one request to its statistics and to the server's."""
        known.stats.add(outcome)
        self.stats.add(known.options.program, outcome)

    def close(self, known: Track) -> None:
        """End the request's sources; its statistics wait for the last chunk of its output."""
        if known.begun:
            req = known.req()
            if req is not None:
                end = len(req.output_ids) if req.finished_len is None else req.finished_len
                self.sources.accept(known.rid, req.output_ids[known.seen : end], verified=known.verified)
            known.usage = self.sources.end(known.rid).prediction
            known.begun = False
            self.stats.end(known.options.program, known.stats.reason)
        self.controller.forget(known.rid)

    def report(self, req: Any) -> dict[str, Any] | None:
        """Return a request's statistics with its output: so far while it streams, None where it does not."""
        known = self.tracks.get(req.rid)
        if known is not None and known.req() is not req:
            known = None
        if not req.finished():
            return (known.stats if known else RequestStats()).as_dict() if req.stream else None
        if known is None:
            known = self._first_token_only(req)
        else:
            del self.tracks[req.rid]
        self.close(known)
        usage = asdict(known.usage) if known.usage and known.options.prediction else {}
        controller = known.options.controller or self.config.controller
        unmet = warnings(self.config, known.options)
        return {**known.stats.as_dict(), **usage, "controller": controller, "warnings": unmet}

    def _first_token_only(self, req: Any) -> Track:
        """Return the state of a request that ended before its first round."""
        known = track(req)
        known.stats.not_speculated(known.reason or "finished with its first token")
        if known.options.prediction:
            self._begin_sources(known, req)  # they count its usage
        elif not is_health_check(req):
            self.stats.end(known.options.program, known.stats.reason)
        return known

    def _sweep(self) -> None:
        """Drop requests that ended without a word to us (aborts)."""
        if len(self.tracks) < SWEEP_ABOVE:
            return
        for rid, known in list(self.tracks.items()):
            req = known.req()
            if req is None or req.finished():
                self.close(known)
                del self.tracks[rid]
