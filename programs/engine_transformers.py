"""Hugging Face Transformers in this process as the backend of programs: assisted generation with a draft model.

The same programs, another engine: one request at a time, no prefix cache, and the library's own policy for
the number of drafted tokens.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglang.lang.backend.base_backend import BaseBackend
from sglang.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from sglang.lang.interpreter import StreamExecutor
from sglang.lang.ir import SglSamplingParams

from programs.choosing import choose
from sgl_spec.batch.usage import Usage, total
from sgl_spec.chat_template import template_for
from sgl_spec.errors import ConfigError, EngineError
from sgl_spec.stats import RequestStats

UNSUPPORTED = ("regex", "json_schema", "dtype", "stop_regex", "frequency_penalty", "presence_penalty")


class TransformersBackend(BaseBackend):
    """A target and perhaps a draft, loaded in fp32. `usage` counts every request."""

    def __init__(self, model_path: str, draft_model_path: str | None = None) -> None:
        from transformers import AutoTokenizer

        super().__init__()
        self.model_path, self.draft_model_path = model_path, draft_model_path
        self.tokenizer = AutoTokenizer.from_pretrained(model_path)
        self.target = _load(model_path)
        self.draft = _load(draft_model_path) if draft_model_path else None
        self.chat_template = template_for(model_path)
        self.usage = Usage()
        self._lock = threading.Lock()  # a model object serves one request at a time

    def get_model_name(self) -> str:
        """Return the target's path."""
        return self.model_path

    def stats(self) -> dict[str, Any]:
        """Return the counts of all requests."""
        return self.usage.as_dict()

    def count_tokens(self, texts: list[str]) -> list[int]:
        """Return how many tokens each text has, without special tokens."""
        return [len(ids) for ids in self.tokenizer(texts, add_special_tokens=False)["input_ids"]] if texts else []

    def generate(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> Any:
        """Return (text, meta_info), lists of both for n > 1."""
        found = [self._one(s.text_, sampling_params) for _ in range(sampling_params.n)]
        texts, metas = [text for text, _ in found], [meta for _, meta in found]
        return (texts[0], metas[0]) if sampling_params.n == 1 else (texts, metas)

    def generate_stream(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> Iterator[Any]:
        """Yield (new text, meta_info); this engine gives the whole text at once."""
        yield self.generate(s, sampling_params)

    def select(
        self,
        s: StreamExecutor,
        choices: list[str],
        temperature: float,
        choices_method: ChoicesSamplingMethod | None = None,
    ) -> ChoicesDecision:
        """Return the choice with the largest mean log-probability per token."""
        prompt = s.text_
        return choose(choices, lambda choice: self._mean_logprob(prompt, choice), temperature, choices_method)

    def _one(self, prompt: str, params: SglSamplingParams) -> tuple[str, dict[str, Any]]:
        _refuse(params)
        stops = [params.stop] if isinstance(params.stop, str) else list(params.stop or ())
        inputs = self.tokenizer(prompt, return_tensors="pt")
        length = inputs["input_ids"].shape[1]
        stats = RequestStats()
        with self._lock, _watched(self.target, stats):
            ids = self.target.generate(
                **inputs,
                assistant_model=self.draft,
                stopping_criteria=[_stops_at(self.tokenizer, stops, length)],
                max_new_tokens=params.max_new_tokens,
                min_new_tokens=params.min_new_tokens or None,
                pad_token_id=self.tokenizer.eos_token_id,
                **_sampling(params),
            )[0][length:]
        ids, text = _until(self.tokenizer, ids, stops)
        ended = len(ids) < params.max_new_tokens or ids[-1] == self.tokenizer.eos_token_id
        meta = {
            "prompt_tokens": length,
            "completion_tokens": len(ids),
            "finish_reason": {"type": "stop" if ended else "length"},
            "sgl_spec": stats.as_dict() if self.draft is not None else None,
        }
        self.usage.add(total(meta))
        return text, meta

    def _mean_logprob(self, prompt: str, choice: str) -> float:
        import torch

        ids = self.tokenizer(prompt + choice, return_tensors="pt")["input_ids"]
        start = len(self.tokenizer(prompt)["input_ids"])
        with self._lock, torch.no_grad():
            logprobs = self.target(ids).logits[0].log_softmax(-1)
        first = min(start, ids.shape[1] - 1)  # a choice that melts into the prompt's last token counts that one
        scores = [float(logprobs[at - 1, ids[0, at]]) for at in range(max(1, first), ids.shape[1])]
        return sum(scores) / len(scores)


def _load(path: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    except (OSError, ValueError) as error:
        raise EngineError(f"Transformers cannot load {path}: {str(error).splitlines()[0]}") from error


def _refuse(params: SglSamplingParams) -> None:
    for name in UNSUPPORTED:
        if getattr(params, name, None):
            raise ConfigError(f"{name} is not supported by engine=transformers: use engine=sglang.")


def _sampling(params: SglSamplingParams) -> dict[str, Any]:
    if params.temperature <= 0:
        return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    return {
        "do_sample": True,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": max(params.top_k, 0),
        "min_p": params.min_p or None,
    }


def _stops_at(tokenizer: Any, stops: list[str], length: int) -> Any:
    """Return a stopping criterion; the library's own is handed to the draft too, which has no tokenizer there."""
    import torch

    def seen(input_ids: Any, *_: Any, **__: Any) -> Any:
        text = tokenizer.decode(input_ids[0, length:])
        return torch.tensor([any(stop in text for stop in stops)], device=input_ids.device)

    return seen


def _until(tokenizer: Any, ids: Any, stops: list[str]) -> tuple[Any, str]:
    """Return the tokens up to the first stop string, and the text before it.

    An assisted round is looked at as a whole, so accepted tokens may follow the stop string.
    """
    count = len(ids)
    while count and any(stop in tokenizer.decode(ids[: count - 1]) for stop in stops):
        count -= 1
    raw = tokenizer.decode(ids[:count])
    ends = [raw.index(stop) for stop in stops if stop in raw]
    text = raw[: min(ends)] if ends else tokenizer.decode(ids[:count], skip_special_tokens=True)
    return ids[:count], text


@contextmanager
def _watched(model: Any, stats: RequestStats) -> Iterator[None]:
    """Count each assisted round: the library reports them to its candidate generator only."""
    from sgl_spec.control.base import RequestRound

    make = model._get_candidate_generator

    def counting(*args: Any, **kwargs: Any) -> Any:
        generator = make(*args, **kwargs)
        get, update = generator.get_candidates, generator.update_candidate_strategy
        proposed = [0]

        def get_candidates(input_ids: Any, *more: Any, **named: Any) -> Any:
            found = get(input_ids, *more, **named)
            proposed[0] = found[0].shape[1] - input_ids.shape[1]
            return found

        def update_candidate_strategy(input_ids: Any, scores: Any, num_matches: Any) -> Any:
            stats.add(RequestRound("", proposed=proposed[0], accepted=int(num_matches)))
            return update(input_ids, scores, num_matches)

        generator.get_candidates = get_candidates
        generator.update_candidate_strategy = update_candidate_strategy
        return generator

    model._get_candidate_generator = counting
    try:
        yield
    finally:
        del model._get_candidate_generator
