"""Code edits for the prediction benchmark: own source files of 40 to 200 lines before and after a small change."""

import json
from functools import cache
from pathlib import Path

from pydantic import BaseModel

from sgl_spec.errors import ConfigError

COPY = "# {}, a copy\n"
HEAD = 8  # lines of the copy that the prompt already holds, at most


class Edit(BaseModel):
    """A file before (`old`) and after (`new`) a `change` that touches `lines_changed` lines."""

    name: str
    change: str
    lines_changed: int
    old: str
    new: str


@cache
def edits() -> tuple[Edit, ...]:
    """All edits, short files first."""
    path = Path(__file__).parent / "data" / "edits.json"
    return tuple(Edit(**entry) for entry in json.loads(path.read_text(encoding="utf-8")))


def some_edits(count: int) -> tuple[Edit, ...]:
    """`count` edits over the whole range of lengths; raises ConfigError if there are not so many."""
    found = edits()
    if not 0 < count <= len(found):
        raise ConfigError(f"prompts={count} is not possible: there are {len(found)} edits, none is repeated.")
    return tuple(found[i * len(found) // count] for i in range(count))


def copy_task(edit: Edit) -> tuple[str, str]:
    """(prompt, prediction): a text that goes on with the edited file, and what the old file would go on with.

    A 135M model copies, but cannot edit: it is shown the file as it shall become, a copy of it, and the beginning of
    another, up to HEAD lines before the first change. (Of a first copy it gets one token in ten wrong for some hundred
    tokens, of a second hardly any.) The prediction is the rest of the file as it was, so what is measured is an
    output that differs from its prediction by the edit.
    """
    old, new = edit.old.splitlines(keepends=True), edit.new.splitlines(keepends=True)
    same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), HEAD)
    head = min(same, HEAD)
    shown = f"# {edit.name}\n{edit.new}\n{COPY.format(edit.name)}{edit.new}\n{COPY.format(edit.name)}"
    return shown + "".join(new[:head]), "".join(old[head:])
