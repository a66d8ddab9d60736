"""Options that the benchmarks share, and how each of them ends: a card, perhaps a file, one JSON line."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sgl_spec.bench.provenance import provenance
from sgl_spec.bench.result import RESULTS, Result
from sgl_spec.console import emit, table

WIDE = 220  # columns of a card that goes into a file
TargetOption = Annotated[Path | None, typer.Option("--target", help="Target model; default: the demo pair.")]
DraftOption = Annotated[Path | None, typer.Option("--draft", help="Draft model; default: the demo pair.")]
TokensOption = Annotated[int, typer.Option("--max-new-tokens", min=4, help="Tokens per answer.")]
QuickFlag = Annotated[bool, typer.Option("--quick", help="The least that still runs every arm; not a result.")]
SaveFlag = Annotated[bool, typer.Option("--save", help=f"Write {RESULTS}/<name>.json under this folder.")]


def prompts_option(text: str = "Prompts per task; none is repeated.") -> Any:
    """The option --prompts."""
    return typer.Option("--prompts", min=1, help=text)


def finish(
    out: Console,
    name: str,
    meaning: str,
    ratio: tuple[float, float, float],
    rows: list[dict[str, Any]],
    *,
    threads: int | None = None,
    save: bool = False,
    json_output: bool = False,
) -> Result:
    """Make the result of (ratio, low, high) and rows, print it, save it and emit it as asked."""
    result = Result(
        name=name,
        meaning=meaning,
        ratio=round(ratio[0], 4),
        spread=(round(ratio[1], 4), round(ratio[2], 4)),
        rows=rows,
        provenance=provenance(threads),
    )
    if not out.is_terminal:
        out.width = WIDE
    out.print(card(result))
    out.print(f"ratio {result.ratio:.3f} ({result.spread[0]:.3f} to {result.spread[1]:.3f}): {meaning}")
    if save:
        out.print(f"written to {result.save()}")
    if json_output:
        emit(result)
    return result


def card(result: Result) -> Table:
    """The rows as a table."""
    columns = columns_of(result)
    cells = [[cell(row.get(key)) for key in columns] for row in result.rows]
    numbers = [i for i, key in enumerate(columns) if any(_is_number(row.get(key)) for row in result.rows)]
    return table(f"bench {result.name}", [key.replace("_", " ") for key in columns], cells, numbers)


def columns_of(result: Result) -> list[str]:
    """The keys of all rows, in the order of their first use."""
    return list(dict.fromkeys(key for row in result.rows for key in row))


def cell(value: object) -> str:
    """A value of a row as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return " to ".join(cell(part) for part in value)
    return str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
