"""Each knob once: name, unit, range, default, one sentence. The CLI, the docs and the server read this.

`SpecConfig` is what a server is started with; it travels to SGLang's scheduler process as JSON in one
environment variable. `RequestOptions` is what one request may say, in `custom_params["sgl_spec"]`.
Unknown keys and values out of range raise `ConfigError`: one sentence with the knob, the value, the remedy.
"""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from sgl_spec.errors import ConfigError
from sgl_spec.names import nearest

ENV = "SGL_SPEC_CONFIG"
MAX_DRAFTS = 32  # the verify kernels and the position statistics are sized for it
MAX_PREDICTION_CHARS = 1_000_000
MAX_PREDICTION_IDS = 262_144
MAX_NAME = 128
SHOWN = 60  # characters of a bad value that an error repeats
MOST_BITS = 256  # an error tells a longer number by its length

ControllerName = Literal["throughput", "threshold", "ema", "bandit", "fixed"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Validate `values`; raises `ConfigError` with one sentence about the first thing that is wrong."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"{cls.label()} must be an object of named options, not {shown(values)}.")
        for key in values:
            if key not in cls.model_fields:
                raise ConfigError(unknown_name(cls.label(), key, list(cls.model_fields)))
        try:
            return cls(**values)
        except ValidationError as error:
            raise ConfigError(sentence(cls, error)) from None

    @classmethod
    def label(cls) -> str:
        """How error sentences call this object."""
        return "sgl_spec"


class SpecConfig(_Strict):
    """What a server is started with."""

    # Models
    model_path: str = Field(
        min_length=1, description="Folder or hub name of the target model, whose output law is kept."
    )
    draft_model_path: str | tuple[str, ...] | None = Field(
        default=None,
        description="Draft model; several (smallest first) form a pyramid; none: other sources only.",
    )
    cpu_weights: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="Storage of weights on a CPU; bf16 is faster and another numerical model.",
    )

    # How many guesses
    num_speculative_tokens: int = Field(
        default=5,
        ge=0,
        le=MAX_DRAFTS,
        description="Drafted tokens per round at the start; with controller=fixed always.",
    )
    max_speculative_tokens: int | None = Field(
        default=None,
        ge=0,
        le=MAX_DRAFTS,
        description="Most drafted tokens per round; none: 10, or the start value if larger or fixed.",
    )
    controller: ControllerName = Field(
        default="throughput",
        description="Policy that sets the number of drafted tokens of each request and round.",
    )
    draft_confidence: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="Drafting stops when the product of the draft's largest probabilities falls below it; "
        "none: below what the cost model says that a row, or one more draft forward, must be worth.",
    )
    probe_share: float = Field(
        default=0.01,
        ge=0.0,
        le=0.1,
        description="Share of time that may go into testing a draft that did not pay.",
    )

    # Where guesses come from
    draft_cache: bool = Field(default=True, description="Reuse earlier outputs and the prompt as a draft source.")
    draft_cache_mb: int = Field(default=64, ge=1, le=65_536, description="Memory bound of the draft cache, in MiB.")
    prediction: bool = Field(default=True, description="Accept a predicted output per request as a draft source.")
    draft_vocabulary: Literal["auto", "same", "tokens", "text"] = Field(
        default="auto",
        description="How a draft with other token ids speaks to the target: same refuses it, tokens draws from the "
        "tokens that both have, text sends its words; auto takes the first of these that fits.",
    )
    draft_temperature: float | None = Field(
        default=None,
        ge=0.0,
        le=5.0,
        description="Temperature at which the draft samples, 0 for argmax; none: the request's own.",
    )

    # State
    cost_file: str | None = Field(
        default=None, description="JSON file that keeps measured costs and acceptance over a restart."
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2**63 - 1,
        description="Seed of the random numbers of requests that bring no seed.",
    )

    @field_validator("draft_model_path", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        if isinstance(value, list):
            value = tuple(value)
        if value in ("", ()) or (isinstance(value, tuple) and "" in value):
            raise ValueError("is empty; name a model folder, or leave it out to run without a draft model")
        return value

    @model_validator(mode="after")
    def _contradictions(self) -> Self:
        top = self.max_speculative_tokens
        if top is not None and top < self.num_speculative_tokens:
            raise ValueError(
                f"num_speculative_tokens={self.num_speculative_tokens} is above "
                f"max_speculative_tokens={top}; lower the first or raise the second"
            )
        return self

    @property
    def k_max(self) -> int:
        """Most drafted tokens that a round may hold: what buffers are sized for."""
        if self.max_speculative_tokens is not None:
            return self.max_speculative_tokens
        if self.controller == "fixed" or self.num_speculative_tokens == 0:
            return self.num_speculative_tokens
        return max(self.num_speculative_tokens, 10)

    @property
    def draft_model_paths(self) -> tuple[str, ...]:
        """The draft models, smallest first; empty without one."""
        if self.draft_model_path is None:
            return ()
        return (self.draft_model_path,) if isinstance(self.draft_model_path, str) else self.draft_model_path

    def to_json(self) -> str:
        """JSON that `from_json` turns back into an equal object."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The object that `to_json` wrote; raises `ConfigError`."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            where = f"{error.msg} at character {error.pos}"
            raise ConfigError(f"{ENV} is not JSON ({where}): unset it.") from None
        return cls.parse(values)

    def to_env(self, environ: dict[str, str] | None = None) -> None:
        """Put the configuration where the scheduler process finds it."""
        (os.environ if environ is None else environ)[ENV] = self.to_json()

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self | None:
        """The configuration that the parent process put into the environment; none if there is none."""
        text = (os.environ if environ is None else environ).get(ENV)
        return None if not text else cls.from_json(text)


class RequestOptions(_Strict):
    """What one request may ask: `custom_params["sgl_spec"]`, or `sgl_spec.options(...)` in a program."""

    speculate: bool = Field(default=True, description="False: this request is decoded plainly.")
    num_speculative_tokens: int | None = Field(
        default=None, ge=0, le=MAX_DRAFTS, description="Most drafted tokens per round for this request."
    )
    controller: ControllerName | None = Field(default=None, description="Policy of this request; none: the server's.")
    draft_confidence: float | None = Field(
        default=None, ge=0.0, le=1.0, description="Stop threshold of this request; none: the server's."
    )
    program: str = Field(
        default="",
        max_length=MAX_NAME,
        description="Key under which acceptance is learnt and statistics are kept.",
    )
    prediction: str | tuple[int, ...] | None = Field(
        default=None, description="The expected output, as text or token ids; tried first as a draft."
    )
    cache: bool = Field(default=True, description="False: this request neither reads nor feeds the draft cache.")
    draft_model: bool = Field(
        default=True, description="False: guesses of this request come from the cache and its prediction only."
    )
    prompt_lookup: bool = Field(
        default=True, description="False: this request's own prompt and output are not searched for guesses."
    )
    namespace: str = Field(
        default="",
        max_length=MAX_NAME,
        description="Tenant: the draft cache is never shared between namespaces.",
    )

    @field_validator("prediction", mode="before")
    @classmethod
    def _bounded(cls, value: Any) -> Any:
        if isinstance(value, str) and len(value) > MAX_PREDICTION_CHARS:
            raise ValueError(f"has {len(value)} characters; send at most {MAX_PREDICTION_CHARS}")
        if isinstance(value, list | tuple):
            if len(value) > MAX_PREDICTION_IDS:
                raise ValueError(f"has {len(value)} token ids; send at most {MAX_PREDICTION_IDS}")
            if any(type(token) is not int or token < 0 for token in value):
                raise ValueError("must hold token ids, whole numbers from 0 up")
            return tuple(value)
        return value

    @classmethod
    def label(cls) -> str:
        """How error sentences call this object."""
        return 'custom_params["sgl_spec"]'


class _Brief(reprlib.Repr):
    """``repr`` with bounds on depth and length."""

    def repr_int(self, number: int, _: int) -> str:
        """A long number by its length: Python refuses to write out very long ones."""
        bits = number.bit_length()
        return repr(number) if bits <= MOST_BITS else f"a number of {bits} bits"


_brief = _Brief()
_brief.maxlevel, _brief.maxlist, _brief.maxtuple, _brief.maxdict = 3, SHOWN, SHOWN, SHOWN
_brief.maxstring = _brief.maxother = 2 * SHOWN


def shown(value: object) -> str:
    """`value` as an error sentence repeats it: at most `SHOWN` characters, however large, deep or knotted it is."""
    if isinstance(value, str | bytes | list | tuple | dict) and len(value) > SHOWN:
        return f"{type(value).__name__} of length {len(value)}"
    text = _brief.repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def unknown_name(where: str, name: object, known: list[str]) -> str:
    """One sentence for an unknown key, with the nearest known one."""
    text = str(name)[:MAX_NAME]
    return f"{where} has no option {shown(text)}{nearest(text, known)}."


def sentence(model: type[_Strict], error: ValidationError) -> str:
    """The first problem that pydantic found, as one sentence with knob, value and remedy."""
    problem = error.errors(include_url=False)[0]
    if not problem["loc"]:
        return _plain(problem["msg"]) + "."
    knob = str(problem["loc"][0])
    if problem["type"] == "missing":
        return f"{knob} is missing: {(model.model_fields[knob].description or '')}"
    message = _plain(problem["msg"])
    if problem["type"] == "value_error":
        return f"{knob} {message}."
    return f"{knob}={shown(problem['input'])} is not valid: {message[0].lower()}{message[1:]}."


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ")
