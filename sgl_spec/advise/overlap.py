"""How far two models share their token ids, read from their tokenizer.json without loading a tokenizer."""

import json
from pathlib import Path

from sgl_spec.errors import ConfigError


def read_vocabulary(folder: Path) -> dict[str, int] | None:
    """Token to id of the model in `folder`, added tokens included; none if there is no tokenizer.json."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        entries = data["model"]["vocab"]
        vocabulary = dict(entries) if isinstance(entries, dict) else {row[0]: i for i, row in enumerate(entries)}
        vocabulary.update((token["content"], token["id"]) for token in data.get("added_tokens", ()))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ConfigError(f"{path} cannot be read as a tokenizer ({error}): copy the model folder again.") from None
    return vocabulary


def overlap(target: dict[str, int], draft: dict[str, int]) -> float:
    """Share of the target's tokens that have the same id in the draft.

    Below 1.0 the ids must be translated (`draft_vocabulary`), and what cannot be translated can never be guessed.
    """
    if not target:
        return 0.0
    return sum(draft.get(token) == number for token, number in target.items()) / len(target)
