"""What to change when a plan does not fit: flags, what each saves, and what it costs."""

from collections.abc import Iterator
from math import ceil

from pydantic import BaseModel

from sgl_spec.advise.families import find, known_models
from sgl_spec.advise.plan import GB, Plan, PlanRequest, make_plan


class Suggestion(BaseModel):
    """One change: flags for the server, GB saved per device, whether it is enough alone, its price."""

    flags: str
    saves_gb_per_device: float
    enough: bool
    price: str


def suggestions(request: PlanRequest, plan: Plan) -> list[Suggestion]:
    """Changes that make `plan` smaller, lossless ones first; empty if it fits or no memory was given."""
    if plan.fits is not False or request.memory_gb is None:
        return []
    found = []
    for flags, price, changed in _changes(request, plan):
        other = make_plan(changed)
        saved = plan.total_gb_per_device - other.total_gb_per_device
        if saved > 0:
            enough = bool(other.fits)
            found.append(Suggestion(flags=flags, saves_gb_per_device=saved, enough=enough, price=price))
    return found


def _changes(request: PlanRequest, plan: Plan) -> Iterator[tuple[str, str, PlanRequest]]:
    yield from _draft_changes(request)
    target = request.target
    offload = ceil(plan.total_gb_per_device - (request.memory_gb or 0))
    if offload * request.tp_size < target.weight_bytes / GB:
        yield (
            f"--cpu-offload-gb {offload}",
            "slower: these weights cross the bus in each pass",
            request.model_copy(update={"cpu_offload_gb": request.cpu_offload_gb + offload}),
        )
    if request.max_running_requests > 1:
        half = request.max_running_requests // 2
        yield (
            f"--max-running-requests {half}",
            "fewer requests at once",
            request.model_copy(update={"max_running_requests": half}),
        )
    if request.context > 4096:
        half = request.context // 2
        yield (
            f"--context-length {half}",
            "shorter requests",
            request.model_copy(update={"context_length": half}),
        )
    if request.device == "cuda":
        double = 2 * request.tp_size
        yield f"--tp-size {double}", f"{double} devices", request.model_copy(update={"tp_size": double})
        if target.quantization is None and target.shape.stored_bits is None:
            smaller = target.model_copy(update={"quantization": "fp8"})
            yield (
                "--quantization fp8",
                "another numerical model",
                request.model_copy(update={"target": smaller}),
            )
        if target.kv_dtype == "auto":
            smaller = target.model_copy(update={"kv_dtype": "fp8_e4m3"})
            yield (
                "--kv-cache-dtype fp8_e4m3",
                "another numerical model",
                request.model_copy(update={"target": smaller}),
            )


def _draft_changes(request: PlanRequest) -> Iterator[tuple[str, str, PlanRequest]]:
    """Changes to the draft alone: the output stays the same, acceptance may fall."""
    draft = request.draft
    if draft is None:
        return
    price = "same output, perhaps lower acceptance"
    if request.num_speculative_tokens > 2 and request.max_total_tokens is None:
        shorter = request.model_copy(update={"num_speculative_tokens": 2})
        yield "--num-speculative-tokens 2 --max-speculative-tokens 2", "same output, shorter drafts", shorter
    if request.device == "cuda" and draft.quantization is None and draft.shape.stored_bits is None:
        smaller = draft.model_copy(update={"quantization": "fp8"})
        yield (
            "--speculative-draft-model-quantization fp8",
            price,
            request.model_copy(update={"draft": smaller}),
        )
    if request.device == "cuda" and draft.kv_dtype == "auto":
        smaller = draft.model_copy(update={"kv_dtype": "fp8_e4m3"})
        yield (
            "--speculative-draft-kv-cache-dtype fp8_e4m3",
            price,
            request.model_copy(update={"draft": smaller}),
        )
    known = find(draft.shape.name)
    siblings = [
        other.shape
        for other in (known_models() if known else ())
        if known and other.family == known.family and other.shape.parameters < draft.shape.parameters
    ]
    for shape in sorted(siblings, key=lambda s: -s.parameters)[:2]:
        smaller = draft.model_copy(update={"shape": shape, "folder": None})
        yield (
            f"--speculative-draft-model-path {shape.name}",
            price,
            request.model_copy(update={"draft": smaller}),
        )
    yield (
        "leave --speculative-draft-model-path out",
        "no draft model: cache and predictions still draft",
        request.model_copy(update={"draft": None}),
    )
