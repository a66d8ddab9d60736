"""Code edits for the prediction benchmark: own source files of 40 to 200 lines before and after a small change."""

import json
from functools import cache
from pathlib import Path

from pydantic import BaseModel

from sgl_spec.errors import ConfigError

ASK = "Repeat this Python file exactly, without any comment of your own.\n\n```python\n{new}```"
BEGIN = "```python\n"  # of the answer, so that it is the file and nothing else


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


def copy_prompt(model_path: str, edit: Edit) -> str:
    """A prompt whose answer is the edited file.

    A 135M model copies, but cannot edit: it is shown the file as it shall become, and the prediction is the
    file as it was. What is measured is an output that differs from its prediction by the edit.
    """
    from sgl_spec.chat_template import template_for

    template = template_for(model_path)
    system = [{"role": "system", "content": "You copy text exactly."}]
    asked = template.get_prompt([*system, {"role": "user", "content": ASK.format(new=edit.new)}])
    return asked + template.get_prefix_and_suffix("assistant", [])[0] + BEGIN
