"""What the worker remembers of a request between rounds, read from SGLang's ``Req`` once."""

import weakref
from dataclasses import dataclass, field
from typing import Any

from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX

from sgl_spec.config import RequestOptions
from sgl_spec.draft.base import Proposal
from sgl_spec.draft.prediction import PredictionUsage
from sgl_spec.sglang_plugin.chains import Sampling
from sgl_spec.stats import RequestStats
from sgl_spec.verify.processors import Penalties

OPTIONS_KEY = "sgl_spec"
EVERY_TOKEN = 1 << 30  # SGLang's top_k for "no limit"


@dataclass(slots=True)
class Track:
    """One running request. `read` is how many leading positions the draft model has read, None = look it up."""

    req: weakref.ReferenceType[Any]
    rid: str
    options: RequestOptions
    sampling: Sampling | None  # None = greedy
    penalties: Penalties | None
    reason: str | None  # why it is decoded plainly
    stats: RequestStats
    read: int | None = None
    seen: int = 0  # output tokens that penalties and sources know of
    begun: bool = False  # the host-side sources know the request
    offer: Proposal = field(default_factory=Proposal)  # what they propose for this round
    verified: int = 0  # how much of the last offer went into verification
    drafting: bool = False  # the draft model drafts for it in this round
    usage: PredictionUsage | None = None  # what became of its prediction, once it ended

    @property
    def temperature(self) -> float:
        """0 for greedy requests."""
        return 0.0 if self.sampling is None else self.sampling.temperature


def is_health_check(req: Any) -> bool:
    """Whether SGLang's ``/health`` made this request, which no statistics should show."""
    return str(req.rid).startswith(HEALTH_CHECK_RID_PREFIX)


def options_of(req: Any) -> RequestOptions:
    """Return the request's own options; raises ConfigError."""
    custom = req.sampling_params.custom_params
    given = custom.get(OPTIONS_KEY) if isinstance(custom, dict) else None
    return RequestOptions.parse(given) if given is not None else RequestOptions()


def track(req: Any) -> Track:
    """Read a request when its first round begins."""
    options = options_of(req)
    reason = None if options.speculate else "speculate=False"
    if req.custom_logit_processor:
        reason = "a custom logit processor may keep state, so guesses cannot be judged ahead of time"
    return Track(
        req=weakref.ref(req),
        rid=req.rid,
        options=options,
        sampling=sampling_of(req.sampling_params),
        penalties=penalties_of(req),
        reason=reason,
        stats=RequestStats(reason=reason),
    )


def sampling_of(params: Any) -> Sampling | None:
    """Return None for greedy requests (SGLang maps temperature 0 to top_k 1)."""
    if params.top_k == 1:
        return None
    return Sampling(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.sampling_seed,
    )


def penalties_of(req: Any) -> Penalties | None:
    """Return the request's penalties, or None where nothing would ever change."""
    params = req.sampling_params
    stops = {*(params.stop_token_ids or ()), *(req.eos_token_ids or ())}
    if req.tokenizer is not None:
        stops |= {*(req.tokenizer.additional_stop_token_ids or ()), req.tokenizer.eos_token_id}
    penalties = Penalties(
        frequency=params.frequency_penalty,
        presence=params.presence_penalty,
        repetition=params.repetition_penalty,
        min_new_tokens=params.min_new_tokens,
        stop_ids=tuple(sorted(token for token in stops if token is not None)),
    )
    return penalties if penalties.active else None
