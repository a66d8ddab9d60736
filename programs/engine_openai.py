"""Any OpenAI-compatible chat endpoint, with a cheaper model that drafts for a dearer one.

The drafting model answers first; its text goes to the target as `prediction`. A target that knows the field
keeps what it would have said itself and reports how much of the prediction it used. Tokens and cost of both
are counted, so that one sees whether the draft paid.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sglang.lang.backend.base_backend import BaseBackend
from sglang.lang.interpreter import StreamExecutor
from sglang.lang.ir import SglSamplingParams

from programs.openai_http import OpenAIServer, meta_of
from sgl_spec.batch.usage import Usage, total
from sgl_spec.errors import ConfigError

PATH = "/v1/chat/completions"
MILLION = 1_000_000
UNSUPPORTED = ("regex", "dtype", "stop_regex")


@dataclass
class Model:
    """A model on a server, its prices per million tokens, and what was used of it."""

    url: str
    name: str
    api_key: str | None = None
    input_price: float = 0.0
    output_price: float = 0.0
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        self.server = OpenAIServer(self.url, self.api_key)

    @property
    def cost(self) -> float:
        """What the tokens so far cost."""
        priced = self.usage.prompt_tokens * self.input_price + self.usage.completion_tokens * self.output_price
        return priced / MILLION

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"model": self.name, "cost": self.cost, **self.usage.as_dict()}


class ChatBackend(BaseBackend):
    """A target and perhaps a drafting model. `accepted` and `rejected` count predicted tokens as reported."""

    def __init__(self, target: Model, draft: Model | None = None) -> None:
        super().__init__()
        self.target, self.draft = target, draft
        self.accepted = self.rejected = 0

    def get_model_name(self) -> str:
        """Return the target's name."""
        return self.target.name

    def stats(self) -> dict[str, Any]:
        """Return tokens and cost of both models, and the predicted tokens that the target took over or not."""
        return {
            "target": self.target.as_dict(),
            "draft": self.draft.as_dict() if self.draft else None,
            "accepted_prediction_tokens": self.accepted,
            "rejected_prediction_tokens": self.rejected,
            "cost": self.target.cost + (self.draft.cost if self.draft else 0.0),
        }

    def generate(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> Any:
        """Return (text, meta_info), lists of both for n > 1."""
        body = _body(s, sampling_params)
        answer = self.target.server.post(PATH, {**body, **self._prediction(body), "model": self.target.name})
        choices = answer["choices"]
        meta = self._count(answer.get("usage"), choices[0]["finish_reason"])
        texts = [choice["message"]["content"] or "" for choice in choices]
        return (texts[0], meta) if sampling_params.n == 1 else (texts, [meta] * len(texts))

    def generate_stream(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> Iterator[Any]:
        """Yield (new text, meta_info)."""
        body = _body(s, sampling_params)
        asked = {**body, **self._prediction(body), "model": self.target.name}
        usage, finish = None, None
        for chunk in self.target.server.stream(PATH, asked):
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                finish = choice.get("finish_reason") or finish
                yield choice["delta"].get("content") or "", meta_of(usage, finish)
        yield "", self._count(usage, finish)

    def count_tokens(self, texts: list[str]) -> list[int]:
        """Refuse: the endpoint has no way to count."""
        raise ConfigError(f"engine=openai cannot count the tokens of {len(texts)} texts: use engine=sglang or vllm.")

    def select(self, *_: Any, **__: Any) -> Any:
        """Refuse: the endpoint gives no log-probabilities of a given text."""
        raise ConfigError("engine=openai cannot select among given texts: use engine=sglang or vllm.")

    def _prediction(self, body: dict[str, Any]) -> dict[str, Any]:
        """Let the drafting model answer, and return its text as the target's `prediction`."""
        if self.draft is None:
            return {}
        if body["n"] != 1:
            raise ConfigError(f"n={body['n']} and a drafting model exclude each other: a prediction is one text.")
        answer = self.draft.server.post(PATH, {**body, "model": self.draft.name})
        self.draft.usage.add(total(meta_of(answer.get("usage"), None)))
        return {"prediction": {"type": "content", "content": answer["choices"][0]["message"]["content"] or ""}}

    def _count(self, usage: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        meta = meta_of(usage, finish)
        self.target.usage.add(total(meta))
        details = (usage or {}).get("completion_tokens_details") or {}
        self.accepted += details.get("accepted_prediction_tokens") or 0
        self.rejected += details.get("rejected_prediction_tokens") or 0
        return meta


def _body(s: StreamExecutor, params: SglSamplingParams) -> dict[str, Any]:
    """Return the request of a `gen` that is a whole assistant message; raises ConfigError for other ones."""
    if s.cur_role != "assistant" or s.text_[s.cur_role_begin_pos :]:
        raise ConfigError(
            "engine=openai answers whole assistant messages: a text begun by the program needs engine=vllm."
        )
    for name in UNSUPPORTED:
        if getattr(params, name, None):
            raise ConfigError(f"{name} is not supported by engine=openai: use engine=sglang or vllm.")
    body: dict[str, Any] = {
        "messages": list(s.messages_),
        "max_tokens": params.max_new_tokens,
        "n": params.n,
        "temperature": params.temperature,
        "top_p": params.top_p,
    }
    stops = [params.stop] if isinstance(params.stop, str) else list(params.stop or ())
    if stops:
        body["stop"] = stops
    if params.json_schema:
        import json

        schema = {"name": "answer", "strict": True, "schema": json.loads(params.json_schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body
