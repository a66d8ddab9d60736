"""A vLLM server as the backend of programs, over its completions endpoint: the programs' own templates hold.

`sgl-spec export vllm` prints how to start it with the same draft.
"""

import json
from collections.abc import Iterator
from typing import Any

from sglang.lang.backend.base_backend import BaseBackend
from sglang.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from sglang.lang.interpreter import StreamExecutor
from sglang.lang.ir import SglSamplingParams

from programs.choosing import choose
from programs.openai_http import OpenAIServer, meta_of
from sgl_spec.batch.usage import Usage, total
from sgl_spec.chat_template import template_for
from sgl_spec.errors import ConfigError

PATH = "/v1/completions"


class CompletionsBackend(BaseBackend):
    """A model of a vLLM server; `usage` counts every request."""

    def __init__(self, url: str, model: str, api_key: str | None = None) -> None:
        super().__init__()
        self.server, self.model = OpenAIServer(url, api_key), model
        self.chat_template = template_for(model)
        self.usage = Usage()

    def get_model_name(self) -> str:
        """Return the model's name on the server."""
        return self.model

    def stats(self) -> dict[str, Any]:
        """Return the counts of all requests."""
        return self.usage.as_dict()

    def count_tokens(self, texts: list[str]) -> list[int]:
        """Return how many tokens each text has."""
        asked = ({"model": self.model, "prompt": text, "add_special_tokens": False} for text in texts)
        return [int(self.server.post("/tokenize", body)["count"]) for body in asked]

    def generate(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> Any:
        """Return (text, meta_info), lists of both for n > 1."""
        answer = self.server.post(PATH, self._body(s.text_, sampling_params))
        choices = answer["choices"]
        meta = meta_of(answer.get("usage"), choices[0]["finish_reason"])
        self.usage.add(total(meta))
        texts = [choice["text"] for choice in choices]
        return (texts[0], meta) if sampling_params.n == 1 else (texts, [meta] * len(texts))

    def generate_stream(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> Iterator[Any]:
        """Yield (new text, meta_info)."""
        usage, finish, text = None, None, ""
        for chunk in self.server.stream(PATH, self._body(s.text_, sampling_params)):
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text, finish = choice["text"], choice["finish_reason"] or finish
                yield text, meta_of(usage, finish)
        meta = meta_of(usage, finish)
        self.usage.add(total(meta))
        yield "", meta

    def select(
        self,
        s: StreamExecutor,
        choices: list[str],
        temperature: float,
        choices_method: ChoicesSamplingMethod | None = None,
    ) -> ChoicesDecision:
        """Return the choice with the largest mean log-probability per token."""
        start = self.count_tokens([s.text_])[0]
        prompt = s.text_
        return choose(choices, lambda choice: self._mean_logprob(prompt + choice, start), temperature, choices_method)

    def _mean_logprob(self, text: str, start: int) -> float:
        """Ask for the prompt's own log-probabilities (vLLM's `prompt_logprobs`); the sampled token is ignored."""
        body = {"model": self.model, "prompt": text, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        positions = self.server.post(PATH, body)["choices"][0].get("prompt_logprobs")
        if positions is None:
            raise ConfigError(f"{self.server.url} gives no prompt_logprobs, which select needs: use a vLLM server.")
        at = min(start, len(positions) - 1)
        scores = [next(iter(position.values()))["logprob"] for position in positions[max(1, at) :]]
        return float(sum(scores) / len(scores))

    def _body(self, prompt: str, params: SglSamplingParams) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": params.max_new_tokens,
            "n": params.n,
            "stop": [params.stop] if isinstance(params.stop, str) else list(params.stop or ()),
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": params.min_p,
            "frequency_penalty": params.frequency_penalty,
            "presence_penalty": params.presence_penalty,
            "ignore_eos": params.ignore_eos,
        }
        if params.regex or params.json_schema:
            form = {"regex": params.regex} if params.regex else {"json": json.loads(str(params.json_schema))}
            body["structured_outputs"] = form
        return body
