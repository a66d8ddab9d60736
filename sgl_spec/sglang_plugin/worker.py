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
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker

from sgl_spec.control import make_controller
from sgl_spec.control.base import RequestRound, RequestView, RoundRecord
from sgl_spec.draft.cache import DraftCache
from sgl_spec.draft.sources import HostSources
from sgl_spec.sglang_plugin import isolation, quiet_rounds, report, slots_ahead
from sgl_spec.sglang_plugin.algorithm import config_of
from sgl_spec.sglang_plugin.chains import Chains
from sgl_spec.sglang_plugin.cost_file import CostFile
from sgl_spec.sglang_plugin.cpu_llama import make_verify_pass
from sgl_spec.sglang_plugin.draft_model import NoDraftModel
from sgl_spec.sglang_plugin.drafters import Drafter, load_drafter
from sgl_spec.sglang_plugin.guesses import Guessed, Guesser
from sgl_spec.sglang_plugin.passes import Span
from sgl_spec.sglang_plugin.relay import NOTHING
from sgl_spec.sglang_plugin.requests import Track
from sgl_spec.sglang_plugin.result import Results
from sgl_spec.sglang_plugin.running import Running
from sgl_spec.sglang_plugin.verdict import agree, judge, only_best, seed_first_tokens

logger = logging.getLogger(__name__)


class SpecWorker(BaseSpecWorker):
    """Drives target and draft models for the algorithm ``SGL_SPEC``."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: TpModelWorker) -> None:
        super().__init__()
        self.config = config_of(server_args)
        self._target_worker = target_worker
        self._draft_worker = load_drafter(self.config, server_args, gpu_id, nccl_port, target_worker)
        self.draft_model: Drafter | NoDraftModel = self._draft_worker or NoDraftModel()
        self.controller = make_controller(self.config)
        self.generator = torch.Generator().manual_seed(self.config.seed)
        self.results = Results()
        self.cost_file = CostFile(self.config, self.controller)
        cache = DraftCache(self.config.draft_cache_mb << 20) if self.config.draft_cache else None
        self.running = Running(self.config, HostSources(cache), self.controller, target_worker.tokenizer)
        self.guesser = Guesser(self.config, self.controller, self.draft_model)
        report.install_in_scheduler(self)
        isolation.install()
        quiet_rounds.install()
        slots_ahead.install(self.config.k_max + 1)

    def init_attention_backends(self) -> None:
        """Plan the draft's attention; from here on both models can run."""
        super().init_attention_backends()
        self.verify_pass = make_verify_pass(self.target_worker.model_runner)

    def clear_cache_pool(self) -> None:
        """``flush_cache``: forget what the draft has read and what was generated."""
        self.draft_model.forget_all()
        self.running.sources.flush()

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
        result = self.target_worker.forward_batch_generation(batch, capture_hidden_mode=CaptureHiddenMode.NULL)
        seed_first_tokens(batch, result)
        self.draft_model.forget(batch.out_cache_loc.numpy(force=True))
        for req in batch.reqs:
            if req.rid in self.running.tracks:  # retracted and back: other slots
                self.running.tracks[req.rid].read = None
        result.new_seq_lens = batch.seq_lens
        result.next_draft_input = NOTHING
        return result

    def _round(self, batch: Any) -> GenerationBatchResult:
        started = time.perf_counter()
        reqs, ends = batch.reqs, batch.seq_lens_cpu.tolist()
        tracks = [self.running.track(req) for req in reqs]
        views = [self._view(t, req, n) for t, req, n in zip(tracks, reqs, ends, strict=True)]
        chosen = self.controller.choose(views)
        guessed, chains = self.guesser.guess(reqs, tracks, views, chosen, ends, self.generator)

        verifying = time.perf_counter()
        spans = [
            Span(row, n, [req.output_ids[-1], *g.tokens])
            for row, n, req, g in zip(batch.req_pool_indices.tolist(), ends, reqs, guessed, strict=True)
        ]
        if only_best(batch, tracks):
            logits, verdict = None, agree(guessed, self.verify_pass.best(spans))
        else:
            logits = self.verify_pass.logits(spans, every_row=True)
            verdict = judge(batch, tracks, guessed, logits, self.draft_model.hot_ids, self.generator)
        verified = time.perf_counter()

        self.guesser.settle(spans, self.verify_pass.held, tracks, guessed, verdict.accepted)
        result = self.results.of(batch, ends, [len(g.tokens) for g in guessed], logits, verdict)
        self.draft_model.verified((verified - verifying) * 1e3)
        self._observe(tracks, ends, guessed, chains, verdict.accepted, verified - verifying, started)
        return result

    def _view(self, known: Track, req: Any, n: int) -> RequestView:
        if known.read is None:
            known.read = self.draft_model.read_until(self.verify_pass.held(req.kv.req_pool_idx, 0, n))
            self.running.prefix(known, req, known.read)
        columns = self.verify_pass.req_to_token.shape[1]
        return self.running.view(known, req, n, columns, self.draft_model.context_length)

    def _observe(
        self,
        tracks: list[Track],
        ends: list[int],
        guessed: list[Guessed],
        chains: Chains | None,
        accepted: list[int],
        verify_s: float,
        started: float,
    ) -> None:
        rounds = []
        for known, g, right in zip(tracks, guessed, accepted, strict=True):
            outcome = RequestRound(known.rid, len(g.tokens), right, g.sources, g.hoped)
            self.running.count(outcome, known)
            rounds.append(outcome)
        warning = self.running.stats.round(rounds)
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
                context=sum(ends),
                guess_context=sum(n * len(g.tokens) for n, g in zip(ends, guessed, strict=True)),
            )
        )

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        """Close the request's sources; its statistics wait for the last chunk of its output."""
        known = self.running.tracks.get(rid)
        if known is not None:
            self.running.close(known)
            self.cost_file.save_sometimes()

    def report(self, req: Any) -> dict[str, Any] | None:
        """Return a request's statistics with its output, see `Running.report`."""
        return self.running.report(req)

    def snapshot(self) -> dict[str, Any]:
        """Return the server's statistics, JSON-ready."""
        return {
            "config": self.config.model_dump(mode="json"),
            "controller": self.controller.snapshot(),
            "stats": self.running.stats.as_dict(),
            "draft_vocabulary": self._draft_worker.sentence() if self._draft_worker else None,
            "draft_levels": self._draft_worker.choices() if self._draft_worker else None,
            "running": len(self.running),
            "kv_slots_free": self.token_to_kv_pool_allocator.available_size(),
            "kv_slots": self.token_to_kv_pool_allocator.size,
        }
