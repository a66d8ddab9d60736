"""The law of sampled tokens under guessing, against the exact law that the target's own logits give.

Three tokens are drawn with top_k=4. The target's log-probabilities after each of the 1 + 4 + 16 possible texts,
asked for plainly, give the exact joint law of the 64 outcomes at every temperature. The first token comes from
the prefill; the second and third are accepted or replaced guesses.
"""

import math
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from sgl_spec.bench.ab import MODEL_ONLY, PLAIN
from sgl_spec.bench.load import Ask, Client
from sgl_spec.verify.chi_square import chi_square, power_of

TOP = 4
DRAWN = 3  # tokens of an outcome
EXTRA = 2  # tokens behind them, so that the second and third are guesses of one round
BATCH = 32
BIAS = 0.1  # of the probability mass: the size of error whose detection is stated
GUESS = {**MODEL_ONLY, "controller": "fixed", "num_speculative_tokens": DRAWN, "draft_confidence": 0.0}

Law = dict[tuple[int, ...], dict[int, float]]  # text after the prompt -> log-probability of the next token


class LawTest(BaseModel):
    """One chi-square test. `power` is the chance to see an error of `BIAS` of the mass in `draws` draws."""

    name: str
    temperature: float
    draws: int
    statistic: float
    threshold: float
    p_value: float
    alpha: float
    power: float
    proposed: int
    accepted: int
    passed: bool


def exact_law(client: Client, prompt_ids: list[int]) -> Law:
    """The TOP best tokens and their log-probabilities after every possible text of up to two tokens."""
    law: Law = {}
    texts: list[tuple[int, ...]] = [()]
    for _ in range(DRAWN):
        for text in texts:
            law[text] = _best_tokens(client, [*prompt_ids, *text])
        texts = [(*text, token) for text in texts for token in law[text]]
    return law


def _best_tokens(client: Client, ids: list[int]) -> dict[int, float]:
    sampling = {"max_new_tokens": 1, "temperature": 0.0, "custom_params": {"sgl_spec": PLAIN}}
    asked = {"return_logprob": True, "top_logprobs_num": TOP, "sampling_params": sampling}
    meta = client.post({"input_ids": ids, **asked})["meta_info"]
    return {token: logprob for logprob, token, *_ in meta["output_top_logprobs"][0]}


def joint_law(law: Law, temperature: float) -> dict[tuple[int, ...], float]:
    """Probability of each outcome of DRAWN tokens at `temperature` with top_k=TOP."""
    joint: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(DRAWN):
        step: dict[tuple[int, ...], float] = {}
        for text, mass in joint.items():
            weights = {token: math.exp(logprob / temperature) for token, logprob in law[text].items()}
            total = sum(weights.values())
            step |= {(*text, token): mass * weight / total for token, weight in weights.items()}
        joint = step
    return joint


def check_law(
    client: Client,
    name: str,
    prompt_ids: list[int],
    law: Law,
    temperature: float,
    draws: int,
    alpha: float,
    options: dict[str, Any] | None = None,
    progress: Callable[[int], None] = lambda _done: None,
) -> LawTest:
    """Draw `draws` times with guesses and test the outcomes against the exact law."""
    joint = joint_law(law, temperature)
    counts = dict.fromkeys(joint, 0)
    proposed = accepted = impossible = 0
    how = Ask(DRAWN + EXTRA, temperature, ignore_eos=True, sampling=(("top_k", TOP),))
    for done in range(0, draws, BATCH):
        answer = client.ask_ids([prompt_ids] * min(BATCH, draws - done), options or GUESS, how)
        for ids in answer.ids:
            outcome = tuple(ids[:DRAWN])
            if outcome in counts:
                counts[outcome] += 1
            else:
                impossible += 1
        proposed += answer.total("num_draft_tokens")
        accepted += answer.total("num_accepted_draft_tokens")
        progress(done + BATCH)
    cells = list(joint)
    total = sum(joint.values())
    p = [joint[cell] / total for cell in cells]
    verdict = chi_square([*[counts[cell] for cell in cells], impossible], [*p, 0.0], alpha)
    return LawTest(
        name=name,
        temperature=temperature,
        draws=draws,
        statistic=round(verdict.statistic, 2),
        threshold=round(verdict.threshold, 2),
        p_value=verdict.p_value,
        alpha=alpha,
        power=round(power_of(p, draws, BIAS, alpha), 3),
        proposed=proposed,
        accepted=accepted,
        passed=verdict.passed,
    )
