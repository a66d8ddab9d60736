"""Memory of a target and its draft, line by line, as SGLang 0.5.23 allocates it.

GB are 1e9 bytes. `gb` is the sum over all devices, `gb_per_device` what one of them holds.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from sgl_spec.advise.shape import ModelShape
from sgl_spec.advise.weights import DTYPE_BYTES, KV_BYTES, check, parameters_of

GB = 1e9
MIB = 2**20
FRONT_GB = 0.87  # proportional set size of the HTTP server and the detokenizer on a CPU, models aside (docs/log.md)
SCHEDULER_GB = 0.40  # the same of one scheduler: Python, PyTorch and SGLang


class Model(BaseModel):
    """A model and how it is stored."""

    model_config = ConfigDict(frozen=True)

    shape: ModelShape
    folder: Path | None = None
    dtype: str = "bfloat16"
    quantization: str | None = None
    kv_dtype: str = "auto"

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights."""
        parameters = parameters_of(self.shape, self.folder)
        return parameters.total_bytes(self.dtype, self.quantization, self.shape.stored_bits)

    def kv_bytes_per_token(self, tp_size: int) -> float:
        """Bytes that one token keeps in the KV cache, summed over `tp_size` devices."""
        auto = DTYPE_BYTES[check(self.dtype, DTYPE_BYTES, "dtype")]
        each = auto if self.kv_dtype == "auto" else KV_BYTES[check(self.kv_dtype, KV_BYTES, "kv_cache_dtype")]
        return self.shape.kv_elements_per_device(tp_size) * tp_size * each

    @property
    def stored(self) -> str:
        """How the weights are stored, in words."""
        if self.quantization:
            return f"{self.quantization}, embeddings and norms {self.dtype}"
        return "as the checkpoint is quantised" if self.shape.stored_bits else self.dtype


class PlanRequest(BaseModel):
    """What is planned. Tokens are counted per request; the pool is shared by all requests."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: Model
    draft: Model | None = None
    device: Literal["cuda", "cpu"] = "cuda"
    tp_size: PositiveInt = 1
    context_length: PositiveInt | None = None
    max_running_requests: PositiveInt = 8
    max_total_tokens: PositiveInt | None = None
    page_size: PositiveInt = 1
    num_speculative_tokens: int = Field(default=5, ge=0, le=32)
    chunked_prefill_size: PositiveInt = 8192
    memory_gb: float | None = Field(default=None, gt=0)
    cpu_offload_gb: float = Field(default=0, ge=0, description="Per device, as SGLang's flag.")

    @property
    def context(self) -> int:
        """Tokens that one request may hold."""
        return self.context_length or self.target.shape.context

    @property
    def reserve_tokens(self) -> int:
        """Slots that running requests hold ahead: two rounds of K+1 each (allocation_sizing.py)."""
        rounds = 2 * (self.num_speculative_tokens + 1) if self.draft else 1
        return self.max_running_requests * rounds

    @property
    def pool_tokens(self) -> int:
        """KV slots; the draft's pool has as many as the target's, for they share the slot numbers."""
        return self.max_total_tokens or self.max_running_requests * self.context


class Line(BaseModel):
    """One line of the plan."""

    name: str
    gb: float
    gb_per_device: float
    how: str


class Plan(BaseModel):
    """The plan: lines, sums, whether it fits and what the draft costs."""

    title: str
    lines: list[Line]
    total_gb: float
    total_gb_per_device: float
    without_draft_gb: float
    draft_percent: float
    memory_gb: float | None = None
    fits: bool | None = None
    notes: list[str] = []

    def line(self, name: str) -> Line:
        """The line called `name`."""
        return next(line for line in self.lines if line.name == name)


def make_plan(request: PlanRequest) -> Plan:
    """Compute the plan of `request`."""
    lines = _lines(request)
    total, per_device = sum(line.gb for line in lines), sum(line.gb_per_device for line in lines)
    plain = request.model_copy(update={"draft": None, "num_speculative_tokens": 0})
    without = total if request.draft is None else sum(line.gb for line in _lines(plain))
    names = request.target.shape.name + (f" + {request.draft.shape.name}" if request.draft else "")
    return Plan(
        title=f"{names}, {request.tp_size} x {request.device}, K = {request.num_speculative_tokens}",
        lines=lines,
        total_gb=total,
        total_gb_per_device=per_device,
        without_draft_gb=without,
        draft_percent=100 * (total / without - 1),
        memory_gb=request.memory_gb,
        fits=None if request.memory_gb is None else per_device <= request.memory_gb,
        notes=_notes(request),
    )


def _lines(request: PlanRequest) -> list[Line]:
    lines = []

    def add(name: str, total_bytes: float, how: str) -> None:
        gb = total_bytes / GB
        lines.append(Line(name=name, gb=gb, gb_per_device=gb / request.tp_size, how=how))

    models = [("target", request.target), *([("draft", request.draft)] if request.draft else [])]
    for role, model in models:
        offload = request.cpu_offload_gb * request.tp_size * GB if role == "target" else 0.0
        count = parameters_of(model.shape, model.folder)
        how = f"{(count.linear + count.other) / 1e9:.3g} billion parameters, {model.stored}"
        held = max(0.0, model.weight_bytes - offload)
        if request.device == "cpu" and model.shape.tied:
            held += model.shape.vocab * model.shape.hidden * DTYPE_BYTES[model.dtype]
            how += ", the shared head packed once more for the CPU kernel"
        if request.device == "cpu" and role == "target":
            held += model.shape.vocab * model.shape.hidden
            how += ", the head in int8 too, for greedy tokens"
        if offload:
            how += f", {offload / GB:g} GB of them in host memory"
        add(f"{role} weights", held, how)
    slots = request.pool_tokens + request.page_size  # one page takes the writes of padded rows
    for role, model in models:
        each = model.kv_bytes_per_token(request.tp_size)
        add(f"{role} KV", slots * each, f"{slots} slots x {each:.0f} bytes")
    if request.max_total_tokens is None and request.draft:
        each = sum(model.kv_bytes_per_token(request.tp_size) for _, model in models)
        add(
            "K reserve",
            request.reserve_tokens * each,
            f"{request.reserve_tokens} slots held ahead in both pools",
        )
    add("activations", _activation_bytes(request), _activation_how(request))
    if request.device == "cuda":
        add("graphs and runtime", _runtime_bytes(request) * request.tp_size, "SGLang's own rule (see notes)")
    else:
        processes = FRONT_GB + SCHEDULER_GB * request.tp_size
        add("processes", processes * GB, "Python, PyTorch and SGLang in each process, measured")
    return lines


def _activation_bytes(request: PlanRequest) -> float:
    """Peak of one prefill chunk of the target, or of the logits of one verify pass if that is more."""
    shape, size = request.target.shape, DTYPE_BYTES[request.target.dtype]
    width = shape.experts.active * shape.experts.ffn + shape.experts.shared_ffn if shape.experts else shape.ffn
    tokens = min(request.chunked_prefill_size, request.pool_tokens)
    chunk = tokens * size * (2 * shape.hidden * request.tp_size + 3 * width)
    rows = request.max_running_requests * (request.num_speculative_tokens + 1)
    logits = rows * shape.vocab * 4 * (4 if request.draft else 2)
    return max(chunk, logits * request.tp_size)


def _activation_how(request: PlanRequest) -> str:
    tokens = min(request.chunked_prefill_size, request.pool_tokens)
    rows = request.max_running_requests * (request.num_speculative_tokens + 1)
    return f"estimate: prefill of {tokens} tokens, or fp32 logits, p and q of {rows} verified rows"


def _runtime_bytes(request: PlanRequest) -> float:
    """Per device: 512 MiB, tp/8 GiB for collectives, 2 MiB per graphed request and model (memory_hook.py)."""
    graphs = 2 * request.max_running_requests * (2 if request.draft else 1)
    return (512 + request.tp_size / 8 * 1024 + graphs) * MIB


def _notes(request: PlanRequest) -> list[str]:
    notes = []
    share = request.reserve_tokens / request.pool_tokens
    if request.draft and request.max_total_tokens:
        notes.append(f"The K reserve takes {request.reserve_tokens} slots ({share:.1%}) out of the pool.")
    if request.draft:
        ratio = request.draft.kv_bytes_per_token(request.tp_size) / request.target.kv_bytes_per_token(request.tp_size)
        notes.append(f"One token costs the draft {ratio:.1%} of the target's KV: both pools have the same slots.")
        if request.draft.shape.context < request.context:
            limit = request.draft.shape.context
            notes.append(f"The draft's context ends at {limit} tokens: longer requests go on without it.")
    if request.device == "cuda":
        rule = (512 + 1.5 * max(request.chunked_prefill_size, 2048) + request.tp_size / 8 * 1024) * MIB
        rule += 2 * request.max_running_requests * MIB
        if request.memory_gb and request.memory_gb * GB > 60 * 1024 * MIB:
            rule = max(rule, 10 * 1024 * MIB)
        notes.append(
            f"SGLang leaves {rule / GB:.1f} GB per device outside its pools by default (1.5 MiB per "
            "prefilled token, 2 MiB per graphed request, at least 10 GiB on devices above 60 GiB): "
            "--mem-fraction-static changes it."
        )
    return notes
