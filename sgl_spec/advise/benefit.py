"""What a draft brings and costs: latency, break-even acceptance, operations, price per million tokens.

With survival s_j = a^j (each guess right with chance a) a round of K guesses emits E(K) = 1 + s_1 + ... + s_K
tokens and takes K draft steps and one target pass over K+1 tokens per request (Leviathan et al. 2023,
theorem 3.8, with measured or estimated costs in place of its constant c).
"""

from collections.abc import Callable

from pydantic import BaseModel

from sgl_spec.advise.hardware import Hardware
from sgl_spec.advise.plan import Model
from sgl_spec.control.expect import constant, expected_tokens

MAX_K = 10
ASSUMED = (0.5, 0.6, 0.7, 0.8, 0.9)


class Outcome(BaseModel):
    """The best K for one acceptance, and what it gives."""

    acceptance: float
    num_speculative_tokens: int
    speedup: float
    ms_per_token: float
    extra_flops_percent: float
    price_per_million: float | None = None


class Benefit(BaseModel):
    """A draft against plain decoding, for `requests` at once."""

    requests: int
    plain_ms_per_token: float
    draft_step_ms: float
    break_even_acceptance: float | None
    plain_price_per_million: float | None
    outcomes: list[Outcome]


def benefit(
    target: Model,
    draft: Model,
    hardware: Hardware,
    requests: int = 1,
    price_per_hour: float | None = None,
) -> Benefit:
    """Estimate for `requests` decoding at once; the price is that of the hardware's hour, any currency."""
    plain, step = hardware.step_s(target, requests), hardware.step_s(draft, requests)

    def speedup(acceptance: float, k: int) -> float:
        round_s = k * step + hardware.step_s(target, requests * (k + 1))
        return expected_tokens(constant(acceptance, k)) * plain / round_s

    def price(seconds_per_token: float) -> float | None:
        # requests tokens leave in one step, so the hour is shared by all of them
        return None if price_per_hour is None else price_per_hour / 3600 * seconds_per_token / requests * 1e6

    outcomes = []
    for acceptance in ASSUMED:
        k = max(range(MAX_K + 1), key=lambda k: speedup(acceptance, k))
        gain = speedup(acceptance, k)
        outcomes.append(
            Outcome(
                acceptance=acceptance,
                num_speculative_tokens=k,
                speedup=gain,
                ms_per_token=1e3 * plain / gain,
                extra_flops_percent=_extra_flops(target, draft, acceptance, k),
                price_per_million=price(plain / gain),
            )
        )
    return Benefit(
        requests=requests,
        plain_ms_per_token=1e3 * plain,
        draft_step_ms=1e3 * step,
        break_even_acceptance=break_even(lambda a: max(speedup(a, k) for k in range(1, MAX_K + 1))),
        plain_price_per_million=price(plain),
        outcomes=outcomes,
    )


def break_even(best_speedup: Callable[[float], float]) -> float | None:
    """Smallest acceptance in steps of 0.01 at which speculation is not slower; none if it always is."""
    return next((a / 100 for a in range(101) if best_speedup(a / 100) >= 1.0), None)


def _extra_flops(target: Model, draft: Model, acceptance: float, k: int) -> float:
    """Percent more operations per emitted token than plain decoding."""
    one, small = target.shape.active_parameters, draft.shape.active_parameters
    spent = (k + 1) * one + k * small
    return 100 * (spent / (expected_tokens(constant(acceptance, k)) * one) - 1)
