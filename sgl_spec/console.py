"""What commands print: text for people, and one JSON document as the last line of stdout.

With `--json` the text for people goes to stderr, so that stdout holds the document alone.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel, ValidationError
from rich.console import Console
from rich.table import Table

JsonFlag = Annotated[bool, typer.Option("--json", help="End stdout with one JSON document on one line.")]


def people(json_output: bool = False) -> Console:
    """Console for text: stdout, or stderr when stdout is kept for the JSON document."""
    return Console(stderr=json_output, highlight=False, soft_wrap=True)


def emit(document: BaseModel | dict[str, Any]) -> None:
    """Print the JSON document of a command: one line, no NaN, flushed."""
    data = document.model_dump(mode="json") if isinstance(document, BaseModel) else document
    sys.stdout.write(json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()
) -> Table:
    """Table; the columns at the indices `numbers` are aligned to the right, the first stays on one line."""
    result = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        side: Literal["left", "right"] = "right" if index in numbers else "left"
        result.add_column(column, justify=side, overflow="fold", no_wrap=index == 0 or side == "right")
    for row in rows:
        result.add_row(*(str(cell) for cell in row))
    return result


def sentence(error: ValidationError) -> str:
    """One sentence for a failed validation: the first wrong knob, its value and why."""
    first = error.errors(include_url=False)[0]
    knob = ".".join(str(part) for part in first["loc"]) or error.title
    message = first["msg"].removeprefix("Value error, ")
    return f"{knob}={first['input']!r} is not valid: {message[:1].lower()}{message[1:]}."
