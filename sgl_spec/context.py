"""How many positions a target and its drafts know, read from their folders before a start."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sgl_spec.errors import ConfigError

ALLOW_LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
"""SGLang refuses a context length that the draft does not know, unless this is set; ours stops drafting there."""


def known_positions(config: dict[str, Any]) -> int | None:
    """Return the positions that a model of this `config.json` knows, None if it does not say."""
    text = config.get("text_config") or config
    positions = text.get("max_position_embeddings")
    scaling = text.get("rope_scaling") or {}
    return None if positions is None else int(positions * float(scaling.get("factor") or 1.0))


def shorter_drafts(asked: int, target: dict[str, Any], drafts: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return "name: positions" of each draft that knows fewer than the `asked` positions of a context.

    Raises ConfigError if there is one and the target does not know so many either.
    """
    short = []
    for path, config in drafts:
        positions = known_positions(config)
        if positions is not None and positions < asked:
            short.append(f"{Path(path).name}: {positions}")
    most = known_positions(target)
    if short and most is not None and asked > most:
        raise ConfigError(f"context_length={asked} is more than the {most} positions that model_path knows: lower it")
    return short
