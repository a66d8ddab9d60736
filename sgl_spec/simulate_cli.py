"""`sgl-spec simulate`: controllers on a recorded trace, or the article's tables checked."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from sgl_spec.config import ControllerName, SpecConfig
from sgl_spec.console import JsonFlag, emit, people, table
from sgl_spec.control import make_controller
from sgl_spec.control.expect import ARTICLE_RATES, article_table, from_rates, temperature_table
from sgl_spec.errors import ConfigError
from sgl_spec.names import nearest
from sgl_spec.simulate import Report, Trace, load, replay, synthetic

FIXED = (0, 1, 2, 3, 5, 7, 10)


def simulate(
    trace: Annotated[Path | None, typer.Argument(help="Recorded trace (JSON); left out: the article's table.")] = None,
    *,
    controller: Annotated[list[str] | None, typer.Option(help="Policy to replay; repeatable.")] = None,
    batch: Annotated[int, typer.Option(min=1, max=1024, help="Requests at a time.")] = 1,
    json_output: JsonFlag = False,
) -> None:
    """Replay a trace through controllers without a model, or check the article's tables.

    \b
    Examples:
      sgl-spec simulate
      sgl-spec simulate trace.json --controller throughput --controller threshold --batch 8
      sgl-spec simulate trace.json --json
    """
    known = [name for name in get_args(ControllerName) if name != "fixed"]
    for name in controller or ():
        if name not in known:
            raise ConfigError(f"controller={name!r} is unknown{nearest(name, known)}; fixed K are always run.")
    recorded = load(trace) if trace else Trace(requests=synthetic(from_rates(ARTICLE_RATES)))
    reports = [_run(name, 5, recorded, batch) for name in controller or known]
    fixed = {k: _run("fixed", k, recorded, batch) for k in FIXED}
    out = people(json_output)
    columns = ("policy", "speed-up", "acceptance", "tokens/step", "K changes", "rounds by K")
    rows = [_line(report.controller, report) for report in reports]
    rows += [_line(f"K = {k}", report) for k, report in fixed.items()]
    out.print(table("Replay", columns, rows, numbers=(1, 2, 3, 4)))
    document: dict[str, Any] = {
        "reports": [report.model_dump(mode="json") for report in reports],
        "fixed": {str(k): report.model_dump(mode="json") for k, report in fixed.items()},
    }
    if trace is None:
        document["article"] = _article(out, recorded, fixed)
        document["temperatures"] = _temperatures(out, recorded)
    if json_output:
        emit(document)


def _run(name: str, k: int, trace: Trace, batch: int) -> Report:
    config = SpecConfig.parse(
        {"model_path": "trace", "controller": name, "num_speculative_tokens": k, "max_speculative_tokens": 10}
    )
    return replay(make_controller(config), trace.requests, trace.machine, batch)


def _line(name: str, report: Report) -> tuple[object, ...]:
    rate, length = (report.totals[key] for key in ("draft_acceptance_rate", "tokens_per_step"))
    spread = " ".join(f"{k}:{count}" for k, count in report.k_histogram.items())
    shown = "-" if rate is None else f"{rate:.3f}"
    return name, f"{report.speedup:.3f}", shown, f"{length:.2f}", report.changes, spread


def _article(out: Any, trace: Trace, fixed: dict[int, Report]) -> list[dict[str, Any]]:
    """Print and return the article's table: its K * p, both readings, and what the replay measured."""
    lines, document = [], []
    for row in article_table({k: trace.machine.round_cost(k) for k in ARTICLE_RATES}):
        totals = fixed[row.k].totals
        measured, length = totals["draft_acceptance_rate"], totals["mean_acceptance_length"]
        lines.append(
            (row.k, row.p, f"{measured:.3f}", f"{row.article:.2f}", f"{row.as_rate:.2f}", f"{length:.2f}",
             f"{row.as_chance:.2f}", f"{row.chance_error:+.0%}", f"{row.speedup:.2f}",
             f"{fixed[row.k].speedup:.2f}")
        )  # fmt: skip
        document.append(
            {
                "num_speculative_tokens": row.k,
                "article_acceptance": row.p,
                "article_expected_tokens": row.article,
                "tokens_per_verify_if_rate": row.as_rate,
                "tokens_per_verify_if_chance": row.as_chance,
                "article_error_if_chance": row.chance_error,
                "speedup_with_costs": row.speedup,
                "replayed_acceptance": measured,
                "replayed_length": length,
                "replayed_speedup": fixed[row.k].speedup,
            }
        )
    columns = (
        "K", "p", "run", "K*p", "1+K*p", "run", "E(K)", "off by", "gain", "run"
    )  # fmt: skip
    out.print(
        table("\nThe article's table (run: replayed; gain: speed-up with costs)", columns, lines, numbers=range(10))
    )
    out.print(
        "\nIf p is accepted / proposed, K*p leaves out the bonus token: 1 + K*p holds. If p is the chance of "
        "each\nguess, K*p ignores that it counts only after right ones: E(K) = (1-p^(K+1))/(1-p) holds. "
        "Either way it\nignores what drafting and verifying cost, so its largest K is always the best."
    )
    return document


def _temperatures(out: Any, trace: Trace) -> list[dict[str, Any]]:
    """Print and return what the article's temperatures do to acceptance, exactly, for a synthetic pair."""
    rows = temperature_table({k: trace.machine.round_cost(k) for k in range(11)})
    lines = [(row.temperature, f"{row.sampled:.3f}", f"{row.argmax:.3f}", row.k, f"{row.speedup:.2f}") for row in rows]
    columns = ("temperature", "draft samples", "draft argmax", "best K", "speed-up")
    out.print(table("\nAcceptance per guess by temperature (synthetic pair)", columns, lines, numbers=range(5)))
    out.print(
        "\nHotter text is harder to guess for a draft that takes its likeliest token. One that samples at the "
        "text's\ntemperature is accepted with sum of min(p, q): as both laws flatten, they may even come closer."
    )
    return [asdict(row) for row in rows]
