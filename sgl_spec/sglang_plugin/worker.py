"""The round inside SGLang's scheduler: choose K per request, guess, verify in one pass, commit, observe.

It is `sgl_spec/step.py` for a batch: the same functions of `control/`, `draft/` and `verify/` decide, and
SGLang's own functions allocate, run the models, advance grammars and decide when a request is finished.

A round finds, for each request, n = its committed length: the target has KV for positions < n, and the
token at n (the bonus token of the round before) is the last of ``req.output_ids``.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker

from sgl_spec.control import make_controller
from sgl_spec.control.base import MODEL, Offer, RequestRound, RequestView, RoundRecord
from sgl_spec.draft.base import SourceOptions
from sgl_spec.draft.cache import DraftCache
from sgl_spec.draft.sources import HostSources
from sgl_spec.sglang_plugin import report
from sgl_spec.sglang_plugin.algorithm import config_of
from sgl_spec.sglang_plugin.chains import ChainOrder, Chains, draft_sampling
from sgl_spec.sglang_plugin.cost_file import CostFile
from sgl_spec.sglang_plugin.cpu_llama import make_pass
from sgl_spec.sglang_plugin.draft_model import DraftModel, NoDraftModel
from sgl_spec.sglang_plugin.passes import Span
from sgl_spec.sglang_plugin.relay import NothingToRelay
from sgl_spec.sglang_plugin.requests import Track, track
from sgl_spec.sglang_plugin.verdict import Guessed, judge, seed_first_tokens
from sgl_spec.stats import SpecStats

logger = logging.getLogger(__name__)

SWEEP_ABOVE = 64  # tracks of aborted requests are dropped when more than this many are kept


class SpecWorker(BaseSpecWorker):
    """Drives target and draft models for the algorithm ``SGL_SPEC``."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: TpModelWorker) -> None:
        super().__init__()
        self.config = config_of(server_args)
        self._target_worker = target_worker
        drafts = bool(self.config.draft_model_paths)
        self._draft_worker = DraftModel(server_args, gpu_id, nccl_port, target_worker) if drafts else None
        self.draft_model: DraftModel | NoDraftModel = self._draft_worker or NoDraftModel()
        self.controller = make_controller(self.config)
        self.generator = torch.Generator().manual_seed(self.config.seed)
        self.cost_file = CostFile(self.config, self.controller)
        cache = DraftCache(self.config.draft_cache_mb << 20) if self.config.draft_cache else None
        self.sources = HostSources(cache)
        self.stats = SpecStats()
        self.tracks: dict[str, Track] = {}
        report.install_in_scheduler(self)

    def init_attention_backends(self) -> None:
        """Plan the draft's attention; from here on both models can run."""
        super().init_attention_backends()
        self.verify_pass = make_pass(self.target_worker.model_runner)

    def clear_cache_pool(self) -> None:
        """``flush_cache``: forget what the draft has read and what was generated."""
        self.draft_model.forget_all()
        self.sources.flush()

    def forward_batch_generation(
        self,
        batch: Any,
        on_publish: Callable[[torch.Tensor], None] | None = None,
        grammar_barrier: Callable[[], None] | None = None,
        pp_proxy_tensors: Any = None,
    ) -> GenerationBatchResult:
        """Run one scheduler iteration: a prefill, or a round."""
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return self._prefill(batch)
        return self._round(batch)

    def _prefill(self, batch: Any) -> GenerationBatchResult:
        """The target's own prefill; the draft reads the prompt when it first drafts for it."""
        result = self.target_worker.forward_batch_generation(
            batch, capture_hidden_mode=CaptureHiddenMode.NULL
        )
        seed_first_tokens(batch, result)
        self.draft_model.forget(batch.out_cache_loc)
        for req in batch.reqs:
            if req.rid in self.tracks:  # retracted and back: other slots
                self.tracks[req.rid].read = None
        result.new_seq_lens = batch.seq_lens
        result.next_draft_input = NothingToRelay()
        return result

    def _round(self, batch: Any) -> GenerationBatchResult:
        started = time.perf_counter()
        ends = batch.seq_lens_cpu.tolist()
        tracks = [self._track(req) for req in batch.reqs]
        views = [self._view(t, req, n) for t, req, n in zip(tracks, batch.reqs, ends, strict=True)]
        chosen = self.controller.choose(views)
        guessed, chains = self._guess(batch, tracks, views, chosen, ends)

        verifying = time.perf_counter()
        spans = [
            Span(row, n, [req.output_ids[-1], *g.tokens])
            for row, n, req, g in zip(self._rows(batch), ends, batch.reqs, guessed, strict=True)
        ]
        logits = self.verify_pass.logits(spans, every_row=True)
        verdict = judge(batch, tracks, guessed, logits, self.draft_model.hot_ids, self.generator)
        verified = time.perf_counter()

        self._settle_slots(spans, tracks, guessed, verdict.accepted.tolist())
        result = self._result(batch, guessed, logits, verdict)
        self._observe(tracks, guessed, chains, verdict.accepted.tolist(), verified - verifying, started)
        return result

    def _rows(self, batch: Any) -> list[int]:
        return batch.req_pool_indices.tolist()

    def _track(self, req: Any) -> Track:
        """Return the request's state, brought up to date with what was emitted since."""
        known = self.tracks.get(req.rid)
        if known is None or known.req() is not req:
            if known is not None:  # an aborted request left its state, and a new one took its id
                self._close(known)
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
            prediction = tuple(self.target_worker.tokenizer.encode(prediction, add_special_tokens=False))
        self.sources.begin(
            req.rid,
            req.origin_input_ids,
            SourceOptions(
                namespace=options.namespace,
                program=options.program,
                cache=options.cache,
                prediction=prediction or () if self.config.prediction else (),
                temperature=known.temperature,
            ),
        )
        known.begun = True

    def _view(self, known: Track, req: Any, n: int) -> RequestView:
        """Return what the controller may know: limits, and what the host-side sources offer."""
        limit = self._limit(known, req, n)
        known.offer = self.sources.draft(req.rid, limit)
        offers = [
            Offer(source, a) for source, a in zip(known.offer.sources, known.offer.acceptance, strict=True)
        ]
        if known.read is None:
            pool_row = req.kv.req_pool_idx
            known.read = self.draft_model.read_until(self.verify_pass.req_to_token[pool_row, :n])
        return RequestView(
            rid=req.rid,
            limit=limit,
            program=known.options.program,
            temperature=known.temperature,
            offers=offers,
            model=n + limit <= self.draft_model.context_length,
            pending=n + 1 - known.read,
            options=known.options,
        )

    def _limit(self, known: Track, req: Any, n: int) -> int:
        """Most guesses that could still be emitted, with the bonus token after them."""
        if known.reason is not None:
            return 0
        to_come = req.sampling_params.max_new_tokens - len(req.output_ids)
        room = self.verify_pass.req_to_token.shape[1] - n - 1
        cap = known.options.num_speculative_tokens
        return max(0, min(self.config.k_max, to_come - 1, room, self.config.k_max if cap is None else cap))

    def _guess(
        self, batch: Any, tracks: list[Track], views: list[RequestView], chosen: list[int], ends: list[int]
    ) -> tuple[list[Guessed], Chains | None]:
        """Take each request's first K_i guesses: the host's, and the draft model's after them."""
        guessed, orders, owners = [], [], []
        for i, (known, view, k) in enumerate(zip(tracks, views, chosen, strict=True)):
            host = min(k, len(known.offer))
            guessed.append(
                Guessed(
                    tokens=list(known.offer.tokens[:host]),
                    laws=[None] * host,
                    sources=list(known.offer.sources[:host]),
                    confidences=list(known.offer.acceptance[:host]),
                )
            )
            known.verified = host
            if k > host and view.model:
                assert known.read is not None
                text = self._text(batch.reqs[i], known.read, ends[i])
                orders.append(
                    ChainOrder(
                        pool_row=batch.reqs[i].kv.req_pool_idx,
                        read=known.read,
                        unread=text + guessed[i].tokens,
                        count=k - host,
                        stop_below=self.controller.confidence(view),
                        sampling=draft_sampling(known.sampling, self.config.draft_temperature),
                    )
                )
                owners.append(i)
        if not orders:
            return guessed, None
        assert isinstance(self.draft_model, DraftModel)  # without one, no view says model=True
        chains = self.draft_model.chains(orders, self.generator)
        for at, i in enumerate(owners):
            guessed[i].tokens += chains.tokens[at]
            guessed[i].laws += chains.laws[at]
            guessed[i].confidences += chains.confidences[at]
            guessed[i].sources += [MODEL] * len(chains.tokens[at])
            tracks[i].drafting = True
        return guessed, chains

    @staticmethod
    def _text(req: Any, start: int, n: int) -> list[int]:
        """Return the request's tokens at positions [start, n]."""
        prompt = len(req.origin_input_ids)
        head = list(req.origin_input_ids[start:]) if start < prompt else []
        return head + list(req.output_ids[max(start - prompt, 0) : n + 1 - prompt])

    def _settle_slots(
        self, spans: list[Span], tracks: list[Track], guessed: list[Guessed], accepted: list[int]
    ) -> None:
        """Note which positions the draft has now read: those it wrote whose tokens were committed."""
        self.draft_model.forget(self.verify_pass.slots(spans))
        for span, known, g, right in zip(spans, tracks, guessed, accepted, strict=True):
            if known.drafting and isinstance(self.draft_model, DraftModel) and known.read is not None:
                # The draft read the bonus token and all guesses but the last.
                read = span.start + 1 + min(right, max(len(g.tokens) - 1, 0))
                self.draft_model.mark(span.pool_row, known.read, read)
                known.read, known.drafting = read, False

    def _result(
        self, batch: Any, guessed: list[Guessed], logits: torch.Tensor, verdict: Any
    ) -> GenerationBatchResult:
        """Lay out the emitted tokens as SGLang's result processor reads them."""
        stride = verdict.tokens.shape[1]
        output = LogitsProcessorOutput(next_token_logits=logits)
        if batch.return_logprob:
            columns = torch.arange(stride)
            starts = torch.tensor([0, *[len(g.tokens) + 1 for g in guessed[:-1]]]).cumsum(0)
            index = torch.where(columns <= verdict.accepted[:, None], starts[:, None] + columns, -1)
            emitted = torch.zeros(logits.shape[0], dtype=torch.int64)
            emitted[index[index >= 0]] = verdict.tokens[index >= 0]
            compute_spec_logprobs(batch, output, emitted, accept_index=index)
        accept_lens = verdict.accepted + 1
        return GenerationBatchResult(
            logits_output=output,
            next_token_ids=verdict.tokens.clamp(min=0).reshape(-1),
            accept_lens=accept_lens,
            new_seq_lens=batch.seq_lens + accept_lens.to(batch.seq_lens.device),
            speculative_num_draft_tokens=stride,
            next_draft_input=NothingToRelay(),
        )

    def _observe(
        self,
        tracks: list[Track],
        guessed: list[Guessed],
        chains: Chains | None,
        accepted: list[int],
        verify_s: float,
        started: float,
    ) -> None:
        rounds = []
        for known, g, right in zip(tracks, guessed, accepted, strict=True):
            outcome = RequestRound(known.rid, len(g.tokens), right, g.sources)
            known.stats.add(outcome)
            self.stats.add(known.options.program, outcome)
            rounds.append(outcome)
        warning = self.stats.round(rounds)
        if warning:
            logger.warning(warning)
        self.controller.observe(
            RoundRecord(
                requests=rounds,
                rows=len(tracks) + sum(len(g.tokens) for g in guessed),
                verify_ms=verify_s * 1e3,
                total_ms=(time.perf_counter() - started) * 1e3,
                draft_ms=chains.draft_ms if chains else 0.0,
                draft_steps=chains.draft_steps if chains else 0,
                draft_rows=chains.draft_rows if chains else 0,
                catchup_ms=chains.catchup_ms if chains else 0.0,
                catchup_tokens=chains.catchup_tokens if chains else 0,
            )
        )

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        """Close the request's sources; its statistics wait for the last chunk of its output."""
        known = self.tracks.get(rid)
        if known is not None:
            self._close(known)

    def _close(self, known: Track) -> None:
        if known.begun:
            req = known.req()
            if req is not None:
                end = len(req.output_ids) if req.finished_len is None else req.finished_len
                self.sources.accept(known.rid, req.output_ids[known.seen : end], verified=known.verified)
            known.usage = self.sources.end(known.rid).prediction
            known.begun = False
            self.stats.end(known.options.program, known.stats.reason)
        self.controller.forget(known.rid)
        self.cost_file.save_sometimes()

    def report(self, req: Any) -> dict[str, Any] | None:
        """Return a request's statistics with its last output, None before."""
        if not req.finished():
            return None
        known = self.tracks.pop(req.rid, None)
        if known is None:
            known = track(req)
            known.stats.not_speculated(known.reason or "finished with its first token")
        self._close(known)
        return {**known.stats.as_dict(), "controller": known.options.controller or self.config.controller}

    def snapshot(self) -> dict[str, Any]:
        """Return the server's statistics, JSON-ready."""
        return {
            "config": self.config.model_dump(mode="json"),
            "controller": self.controller.snapshot(),
            "stats": self.stats.as_dict(),
            "running": len(self.tracks),
            "kv_slots_free": self.token_to_kv_pool_allocator.available_size(),
            "kv_slots": self.token_to_kv_pool_allocator.size,
        }

    def _sweep(self) -> None:
        """Drop requests that ended without a word to us (aborts)."""
        if len(self.tracks) < SWEEP_ABOVE:
            return
        for rid, known in list(self.tracks.items()):
            req = known.req()
            if req is None or req.finished():
                self._close(known)
                del self.tracks[rid]
