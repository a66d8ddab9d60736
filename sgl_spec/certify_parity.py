"""Greedy parity: the same token ids with guessing as without, for every draft length and source, and per option."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from sgl_spec.bench.ab import MODEL_ONLY, PLAIN
from sgl_spec.bench.load import Answer, Ask, Client

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"]}
GUESS = {**MODEL_ONLY, "controller": "fixed", "num_speculative_tokens": 4, "draft_confidence": 0.0}
WAYS: dict[str, dict[str, Any]] = {
    **{f"draft model, K={k}": {**GUESS, "num_speculative_tokens": k} for k in (1, 3, 5, 8)},
    "cache and prompt only": {"draft_model": False, "controller": "fixed", "num_speculative_tokens": 5},
    "the server's default": {},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "frequency_penalty=1": {"frequency_penalty": 1.0},
    "presence_penalty=1": {"presence_penalty": 1.0},
    "repetition_penalty=1.2": {"repetition_penalty": 1.2},
    "min_new_tokens=8": {"min_new_tokens": 8},
    "logit_bias": {"logit_bias": {"284": 20.0}},
    "stop=.": {"stop": ["."]},
    "regex": {"regex": "[a-z ]{5,60}"},
    "json_schema": {"json_schema": json.dumps(SCHEMA)},
    "speculate=False": {"spec": {"speculate": False}},
}


class Parity(BaseModel):
    """One comparison with plain decoding. `why_not` is the server's reason where it did not guess."""

    name: str
    answers: int
    equal: int
    proposed: int
    accepted: int
    first_difference: str | None = None
    why_not: str | None = None

    @property
    def passed(self) -> bool:
        """Whether all token ids are equal."""
        return self.equal == self.answers


def check_ways(client: Client, prompts: Sequence[str], tokens: int) -> list[Parity]:
    """Every way of guessing against plain decoding: as one batch, and the first four prompts one by one.

    Each way has a namespace and a prefix cache of its own, so that it meets the prompts cold.
    """
    plain = client.ask(prompts, PLAIN, Ask(tokens), key="plain")
    found = []
    for name, options in WAYS.items():
        own = {"namespace": name, "program": name, **options}
        batch = client.ask(prompts, own, Ask(tokens), key=name)
        found.append(_compare(f"{name}, batch {len(prompts)}", prompts, plain, batch))
        few = list(prompts[:4])
        alone = [client.ask(prompt, {**own, "namespace": name + " alone"}, Ask(tokens), key=name) for prompt in few]
        found.append(_compare(f"{name}, one by one", few, plain, _joined(alone)))
    return found


def check_options(client: Client, prompt: str, tokens: int) -> list[Parity]:
    """Every sampling option that changes the law, greedy: equal ids, and whether guesses were made."""
    found = []
    for name, values in OPTIONS.items():
        given = dict(values)
        spec = given.pop("spec", {})
        how = Ask(tokens, sampling=tuple(given.items()))
        plain = client.ask(prompt, PLAIN, how, key="options")
        found.append(_compare(name, [prompt], plain, client.ask(prompt, {**GUESS, **spec}, how, key="options")))
    return found


def _joined(answers: Sequence[Answer]) -> Answer:
    return Answer(
        seconds=sum(answer.seconds for answer in answers),
        metas=[meta for answer in answers for meta in answer.metas],
        ids=[ids for answer in answers for ids in answer.ids],
        texts=[text for answer in answers for text in answer.texts],
    )


def _compare(name: str, prompts: Sequence[str], plain: Answer, guessed: Answer) -> Parity:
    pairs = list(zip(plain.ids, guessed.ids, strict=False))[: len(prompts)]
    wrong = [i for i, (a, b) in enumerate(pairs) if a != b]
    reasons = [(meta.get("sgl_spec") or {}).get("reason_not_speculated") for meta in guessed.metas]
    return Parity(
        name=name,
        answers=len(pairs),
        equal=len(pairs) - len(wrong),
        proposed=guessed.total("num_draft_tokens"),
        accepted=guessed.total("num_accepted_draft_tokens"),
        first_difference=_difference(prompts[wrong[0]], *pairs[wrong[0]]) if wrong else None,
        why_not=next(filter(None, reasons), None),
    )


def _difference(prompt: str, plain: list[int], guessed: list[int]) -> str:
    length = min(len(plain), len(guessed))
    at = next((i for i in range(length) if plain[i] != guessed[i]), length)
    return f"at token {at} after {prompt[-40:]!r}: plain {plain[at : at + 3]}, with guesses {guessed[at : at + 3]}"
