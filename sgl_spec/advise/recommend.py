"""From measured policies to one recommendation with its reason."""

from pydantic import BaseModel

from sgl_spec.advise.measure import PLAIN, Measured

WORTH = 0.02  # a gain below two percent is not worth a second model in memory
TIE = 0.05  # the adaptive policy may be this much slower than the fastest and is still preferred


class Recommendation(BaseModel):
    """What to run, and why, from measured numbers."""

    speculate: bool
    policy: str
    flags: str
    speedup: float
    reason: str


def recommend(measured: list[Measured], draft: str) -> Recommendation:
    """The fastest policy, or the adaptive one within 5% of it; or not to speculate.

    The adaptive policy is preferred since it also meets texts that were not measured. A gain counts only
    above two percent and above twice its own standard error.
    """
    plain = next(run for run in measured if run.policy.name == PLAIN)
    others = [run for run in measured if run is not plain]
    fastest = max(others, key=lambda run: run.tokens_per_s)
    near = [
        run
        for run in others
        if not run.policy.name.startswith("K=")
        and run.tokens_per_s >= (1 - TIE) * fastest.tokens_per_s
        and _pays(run, plain)
    ]
    best = near[0] if near else fastest
    speedup = best.tokens_per_s / plain.tokens_per_s
    numbers = (
        f"{best.policy.name} gives {best.tokens_per_s:.1f} tokens/s against {plain.tokens_per_s:.1f} plain, "
        f"{_acceptance(best, others)}"
    )
    if not _pays(best, plain):
        return Recommendation(
            speculate=False,
            policy=PLAIN,
            flags="leave --draft-model-path out",
            speedup=speedup,
            reason=f"do not speculate with this draft: the best policy {numbers}.",
        )
    return Recommendation(
        speculate=True,
        policy=best.policy.name,
        flags=f"--draft-model-path {draft} {_policy_flags(best)}",
        speedup=speedup,
        reason=f"speculate: {numbers}.",
    )


def _pays(run: Measured, plain: Measured) -> bool:
    """Whether `run` is faster than `plain` by more than two percent and more than the noise."""
    return run.tokens_per_s / plain.tokens_per_s >= 1 + max(WORTH, 2 * max(run.spread, plain.spread))


def _acceptance(best: Measured, others: list[Measured]) -> str:
    """Acceptance of the best policy, or of the one that proposed most if the best proposed nothing."""
    shown = best if best.proposed else max(others, key=lambda run: run.proposed)
    if shown.acceptance_rate is None:
        return "and nothing was proposed"
    return f"acceptance {shown.acceptance_rate:.2f} ({shown.accepted} of {shown.proposed}, {shown.policy.name})"


def _policy_flags(best: Measured) -> str:
    k = best.policy.options.get("num_speculative_tokens")
    if k is not None:
        return f"--controller fixed --num-speculative-tokens {k}"
    return f"--controller {best.policy.options['controller']}"
