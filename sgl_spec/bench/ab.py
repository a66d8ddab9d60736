"""Several ways to answer the same prompts on one engine, in turn, so that each meets the same machine.

Every arm has its own namespace of the draft cache and its own prefix-cache key: no arm learns from another
one's answer, and each prompt is cold for each arm. The order of the arms turns by one from prompt to prompt.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any, NamedTuple

from sgl_spec.bench.load import Answer, Ask, Client
from sgl_spec.stats import acceptance_rate

RESAMPLES = 1000
MODEL_ONLY = {"cache": False, "prompt_lookup": False}  # guesses of the draft model (and a prediction) alone
PLAIN = {"speculate": False, "cache": False}  # decoded plainly; leaves no text behind


@dataclass(frozen=True)
class Arm:
    """A name, and the request options that make it."""

    name: str
    options: dict[str, Any]


class Ratio(NamedTuple):
    """A quotient of tokens/s with its 95% interval."""

    value: float
    low: float
    high: float


def ask_in_turn(
    client: Client,
    arms: Sequence[Arm],
    calls: Sequence[str | Sequence[str]],
    how: Ask,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    options: Callable[[Arm, int], dict[str, Any]] | None = None,
    run: str = "",
) -> dict[str, list[Answer]]:
    """Answers per arm, in the order of `calls` (each one prompt, or a batch that is sent at once).

    `options` gives an arm's options for a call, by default `arm.options`; `run` tells this series from others on
    the same server, so that nothing is warm from them.
    """
    answers: dict[str, list[Answer]] = {arm.name: [] for arm in arms}
    for number, prompts in enumerate(calls):
        turn = number % len(arms)
        for arm in [*arms[turn:], *arms[:turn]]:
            own = options(arm, number) if options else arm.options
            name = f"{run}/{arm.name}"
            answers[arm.name].append(client.ask(prompts, {"namespace": name, "program": name, **own}, how, key=name))
        progress(number + 1, len(calls))
    return answers


def rate(answers: Sequence[Answer]) -> float:
    """Tokens per second."""
    return sum(a.tokens for a in answers) / sum(a.seconds for a in answers)


def ratio(new: Sequence[Answer], base: Sequence[Answer]) -> Ratio:
    """rate(new) / rate(base); the interval is a bootstrap over the calls, which are paired."""
    return mean_ratio([(new, base)])


def mean_ratio(pairs: Sequence[tuple[Sequence[Answer], Sequence[Answer]]]) -> Ratio:
    """Geometric mean of several ratios (one per task), resampled within each."""
    value = _geometric([rate(new) / rate(base) for new, base in pairs])
    if all(len(new) < 2 for new, _ in pairs):
        return Ratio(value, value, value)
    chance = random.Random(0)  # noqa: S311 - a resample, not a secret
    found = []
    for _ in range(RESAMPLES):
        drawn = []
        for new, base in pairs:
            picked = [chance.randrange(len(new)) for _ in new]
            drawn.append(rate([new[i] for i in picked]) / rate([base[i] for i in picked]))
        found.append(_geometric(drawn))
    cuts = quantiles(found, n=40)
    return Ratio(value, cuts[0], cuts[-1])


def _geometric(values: Sequence[float]) -> float:
    product = 1.0
    for value in values:
        product *= value
    return product ** (1 / len(values))


def summary(answers: Sequence[Answer], base: Sequence[Answer]) -> dict[str, Any]:
    """A row of figures of one arm against the plain one: speed, guesses, and whether the tokens are the same."""
    proposed = sum(a.total("num_draft_tokens") for a in answers)
    accepted = sum(a.total("num_accepted_draft_tokens") for a in answers)
    plain = sum(a.total("num_plain_steps") for a in answers)
    rounds = plain + sum(a.total("num_spec_steps") for a in answers)
    against = ratio(answers, base)
    return {
        "tokens": sum(a.tokens for a in answers),
        "seconds": round(sum(a.seconds for a in answers), 2),
        "tokens_per_s": round(rate(answers), 2),
        "ratio_to_plain": round(against.value, 3),
        "spread": [round(against.low, 3), round(against.high, 3)],
        "acceptance_rate": _rounded(acceptance_rate(accepted, proposed)),
        "guesses_per_round": _rounded(proposed / rounds if rounds else None),
        "tokens_per_step": _rounded(1 + accepted / rounds if rounds else None),
        "plain_share": _rounded(plain / rounds if rounds else None),
        "same_ids": [a.ids for a in answers] == [b.ids for b in base],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
