"""What a draft really brings on a server: the same prompts plainly and with each policy, interleaved.

One server answers all of it, so that every policy meets the same machine in the same minute; a policy is
chosen per request. Times are the server's own (`e2e_latency`), requests run one at a time.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import httpx
from pydantic import BaseModel

from sgl_spec.errors import ConfigError, EngineError

PLAIN = "plain"
FIXED = (1, 2, 4, 8)
TIMEOUT_S = 600.0


class Policy(BaseModel):
    """A name, and the request options that make it."""

    name: str
    options: dict[str, Any]


class Measured(BaseModel):
    """One policy over all prompts. `spread` is the standard error of tokens/s over the prompts, relative."""

    policy: Policy
    tokens: int
    seconds: float
    spread: float
    proposed: int
    accepted: int
    ids_equal_plain: bool

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second."""
        return self.tokens / self.seconds

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over proposed tokens; none if nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else None


def policies(controller: str = "throughput", fixed: Sequence[int] = FIXED) -> list[Policy]:
    """Plain, the adaptive policy, and fixed K, with the draft model alone.

    The cache keeps out, for a prompt is met several times; the search of the request's own prompt keeps out, for it
    costs no draft model and would be put down to this one.
    """
    alone: dict[str, Any] = {"cache": False, "prompt_lookup": False}
    adaptive = Policy(name=controller, options={**alone, "controller": controller, "program": "advise"})
    lengths = [
        Policy(name=f"K={k}", options={**alone, "controller": "fixed", "num_speculative_tokens": k}) for k in fixed
    ]
    return [Policy(name=PLAIN, options={**alone, "speculate": False}), adaptive, *lengths]


def read_prompts(path: Path, limit: int = 64) -> list[str]:
    """Prompts of a file: JSON lines with "prompt" or "text", else one prompt per line."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"measure={path} cannot be read ({error}): name a file with one prompt per line.") from None
    prompts = [_prompt(line, number, path) for number, line in enumerate(lines, start=1)][:limit]
    if not prompts:
        raise ConfigError(f"measure={path} holds no prompt: write one per line.")
    return prompts


def _prompt(line: str, number: int, path: Path) -> str:
    if not line.startswith("{"):
        return line
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        raise ConfigError(f"measure={path} line {number} begins as JSON and is none: correct it.") from None
    text = row.get("prompt") or row.get("text")
    if not isinstance(text, str):
        raise ConfigError(f'measure={path} line {number} has no "prompt" and no "text": add one.')
    return text


def measure(
    client: httpx.Client,
    prompts: Sequence[str],
    tried: Sequence[Policy],
    max_new_tokens: int = 64,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> list[Measured]:
    """Answer every prompt with every policy of `tried` (the first one is plain) through `client`.

    Each prompt is answered once unmeasured, so that its KV is cached for all; the order of the policies
    turns by one from prompt to prompt. Raises EngineError if the server fails.
    """
    answers: dict[str, list[dict[str, Any]]] = {policy.name: [] for policy in tried}
    for number, prompt in enumerate(prompts):
        _generate(client, prompt, tried[0], 1)
        turn = number % len(tried)
        for policy in [*tried[turn:], *tried[:turn]]:
            answers[policy.name].append(_generate(client, prompt, policy, max_new_tokens))
        progress(number + 1, len(prompts))
    plain = [answer["output_ids"] for answer in answers[tried[0].name]]
    return [_summary(policy, answers[policy.name], plain) for policy in tried]


def _generate(client: httpx.Client, prompt: str, policy: Policy, tokens: int) -> dict[str, Any]:
    sampling = {"max_new_tokens": tokens, "temperature": 0, "custom_params": {"sgl_spec": policy.options}}
    try:
        answer = client.post("/generate", json={"text": prompt, "sampling_params": sampling}, timeout=TIMEOUT_S)
        answer.raise_for_status()
        result: dict[str, Any] = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise EngineError(
            f"the server failed while policy {policy.name} was measured ({error}): see its log."
        ) from None
    return result


def _summary(policy: Policy, answers: list[dict[str, Any]], plain: list[list[int]]) -> Measured:
    metas = [answer["meta_info"] for answer in answers]
    rates = [meta["completion_tokens"] / meta["e2e_latency"] for meta in metas]
    counts = [meta.get("sgl_spec") or {} for meta in metas]
    return Measured(
        policy=policy,
        tokens=sum(meta["completion_tokens"] for meta in metas),
        seconds=sum(meta["e2e_latency"] for meta in metas),
        spread=stdev(rates) / mean(rates) / len(rates) ** 0.5 if len(rates) > 1 else 0.0,
        proposed=sum(count.get("num_draft_tokens") or 0 for count in counts),
        accepted=sum(count.get("num_accepted_draft_tokens") or 0 for count in counts),
        ids_equal_plain=[answer["output_ids"] for answer in answers] == plain,
    )
