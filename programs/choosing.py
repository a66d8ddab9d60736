"""`select` for engines that give log-probabilities of a text: the front end's default rule, and only that one."""

from collections.abc import Callable
from typing import Any

from sglang.lang.choices import ChoicesDecision, TokenLengthNormalized

from sgl_spec.errors import ConfigError


def choose(choices: list[str], score: Callable[[str], float], temperature: float, method: Any) -> ChoicesDecision:
    """Return the choice with the largest `score`, its mean log-probability per token.

    Raises ConfigError for a temperature or for another rule than the default.
    """
    if temperature > 0:
        raise ConfigError(
            f"temperature={temperature} is not for select, which takes the likeliest choice: leave it out."
        )
    if method is not None and not isinstance(method, TokenLengthNormalized):
        name = type(method).__name__
        raise ConfigError(f"choices_method={name} needs engine=sglang: other engines have token_length_normalized.")
    scores = [score(choice) for choice in choices]
    best = max(range(len(choices)), key=lambda at: scores[at])
    return ChoicesDecision(decision=choices[best], meta_info={"normalized_prompt_logprobs": scores})
