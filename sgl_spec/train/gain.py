"""What a draft would be worth on this machine: tokens per second from its acceptance and from measured costs.

A round with K guesses emits E(K) = 1 + a_1 + a_1 a_2 + ... tokens and takes K draft steps and one target
forward over K + 1 tokens (Leviathan et al. 2023, section 3, with a measured cost for each K and an acceptance
for each position). What the engine does around the models is not part of it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CONTEXT = 256  # tokens before the forwards that are timed
ROUNDS = 5  # the fastest of so many counts
WEIGHT_BYTES = 4
MEMORY_SHARE = 0.5  # of what is free; a larger target is not timed


@dataclass(frozen=True)
class Gain:
    """The draft length that would be fastest, and its speed; K = 0 is plain decoding."""

    num_speculative_tokens: int
    tokens_per_s: float
    plain_tokens_per_s: float


def best_length(by_position: Sequence[float], step_ms: float, forward_ms: Mapping[int, float]) -> Gain:
    """Return the best K from 0 to as many as there are acceptances.

    by_position: a_1, a_2, ... each given that all before were accepted. step_ms: one draft step.
    forward_ms: milliseconds of a target forward by its number of tokens, from 1 on.
    """
    expected, survival = 1.0, 1.0
    plain = best = 1e3 / forward_ms[1]
    length = 0
    for k, acceptance in enumerate(by_position, start=1):
        survival *= acceptance
        expected += survival
        speed = expected * 1e3 / (k * step_ms + forward_ms[k + 1])
        if speed > best:
            length, best = k, speed
    return Gain(length, best, plain)


def forward_costs(target: Path, most: int) -> dict[int, float] | None:
    """Return milliseconds of forwards over 1 to `most` tokens of a Llama of the target's shape, one thread.

    None for a target that is too large to be timed in this machine's memory.
    """
    import psutil

    from sgl_spec.cpu.microbench import Shape, measure_forward

    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    heads = config["num_attention_heads"]
    shape = Shape(
        hidden=config["hidden_size"],
        inter=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads", heads),
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab=config["vocab_size"],
    )
    weights = sum(n * k for n, k in shape.linears()) * WEIGHT_BYTES
    if weights > psutil.virtual_memory().available * MEMORY_SHARE:
        return None
    return measure_forward(shape, "fp32", tuple(range(1, most + 1)), ROUNDS, CONTEXT)
