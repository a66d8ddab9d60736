"""The HTML page of the results: a bar plot per benchmark, drawn into the page, and its rows."""

import io
from html import escape
from typing import Any

from sgl_spec.bench.options import cell, columns_of
from sgl_spec.bench.result import Result
from sgl_spec.errors import ConfigError

PLOTTED = {
    "speedup": (("task", "arm"), "ratio_to_plain"),
    "adaptive": (("task", "arm"), "tokens_per_s"),
    "worst-case": (("case", "arm"), "ratio_to_plain"),
    "prediction": (("arm",), "ratio_to_plain"),
    "prefix": (("phase",), "seconds"),
    "verify-cost": (("K",), "ours_ms"),
    "overhead": (("batch", "arm"), "outside_forwards"),
    "sweep": (("temperature", "arm"), "ratio_to_plain"),
    "load": (("at_once", "arm"), "tokens_per_s"),
    "advice": (("draft",), "advised_to_best"),
    "peers": (("engine", "mode", "requests"), "tokens_per_s"),
}
NAMED = ("K", "batch", "at_once", "requests")  # numbers that say nothing without their name
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222;
       background: #fff; }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto; }
td, th { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
td:first-child, th:first-child { text-align: left; }
svg { max-width: 100%; height: auto; }
small { color: #666; }
"""


def html_page(results: list[Result]) -> str:
    """All results as one page without outside parts; raises ConfigError where matplotlib is not installed."""
    parts = [section(result) for result in results]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>sgl-spec: results</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>Results</h1>{''.join(parts)}</body></html>\n"
    )


def section(result: Result) -> str:
    """One benchmark: ratio, plot, rows, provenance."""
    columns = columns_of(result)
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell(row.get(name)))}</td>" for name in columns) + "</tr>" for row in result.rows
    )
    made = result.provenance
    return (
        f"<h2>{escape(result.name)}: {result.ratio:.3f} <small>({result.spread[0]:.3f} to {result.spread[1]:.3f})"
        f"</small></h2><p>{escape(result.meaning)}.</p>{plot(result)}<table><tr>{head}</tr>{rows}</table>"
        f"<p><small>{escape(made.command)}, {escape(made.date)}, commit {escape(made.commit)}, "
        f"{escape(str(made.machine['processor']))}, {made.threads} thread(s)</small></p>"
    )


def plot(result: Result) -> str:
    """The main figure of each row as bars, SVG; empty for a benchmark that has none."""
    name = "peers" if result.name.startswith("peers") else result.name
    if name not in PLOTTED:
        return ""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("the HTML report draws with matplotlib: pip install 'sgl-spec[bench]'.") from None
    names, figure_of = PLOTTED[name]
    rows = [row for row in result.rows if row.get(figure_of) is not None]
    labels = [
        " · ".join(
            f"{name}={row[name]}" if name in ("K", "batch", "at_once", "requests") else str(row[name]) for name in names
        )
        for row in rows
    ]
    figure = Figure(figsize=(8, 0.6 + 0.28 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.barh(range(len(rows)), [row[figure_of] for row in rows], xerr=_errors(rows, figure_of), color="#4477aa")
    axes.set_yticks(range(len(rows)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(figure_of.replace("_", " "))
    if figure_of == "ratio_to_plain":
        axes.axvline(1.0, color="#222", linewidth=0.8)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue()
    return text[text.index("<svg") :]


def _errors(rows: list[dict[str, Any]], figure_of: str) -> list[list[float]] | None:
    """Distances to the ends of the interval, where the rows have one for this figure."""
    if figure_of != "ratio_to_plain" or not all("spread" in row for row in rows):
        return None
    return [
        [max(row[figure_of] - row["spread"][0], 0.0) for row in rows],
        [max(row["spread"][1] - row[figure_of], 0.0) for row in rows],
    ]
