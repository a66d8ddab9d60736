"""`sgl-spec advise --measure`: start the engine on a pair, measure all policies, recommend one."""

from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from sgl_spec.advise.measure import Measured, measure, policies, read_prompts
from sgl_spec.advise.recommend import recommend
from sgl_spec.console import table
from sgl_spec.errors import ConfigError


def measure_pair(
    target: Path | None, draft: Path | None, prompts_file: Path, max_new_tokens: int, out: Console
) -> dict[str, Any]:
    """Measure `draft` for `target` on the prompts of a file; print a table and the recommendation.

    Raises ConfigError before anything is started if a folder or the prompts are wrong.
    """
    prompts = read_prompts(prompts_file)
    if target is None:
        raise ConfigError("--measure needs the target as a model folder: a known name has no weights to run.")
    if draft is None:
        raise ConfigError("--measure found no draft folder: name one with --draft, or folders with --search.")
    from sgl_spec.runtime import Runtime

    with Runtime(str(target), str(draft)) as runtime, httpx.Client(base_url=runtime.url) as client:
        out.print(f"\nMeasuring {draft.name} for {target.name} on {len(prompts)} prompts, one at a time.")
        measured = measure(
            client,
            prompts,
            policies(),
            max_new_tokens,
            lambda done, total: out.print(f"  {done} of {total}") if done % 8 == 0 or done == total else None,
        )
    advice = recommend(measured, str(draft))
    _print(measured, out)
    out.print(f"{advice.reason[0].upper()}{advice.reason[1:]}\n{advice.flags}")
    rows = [
        {
            **run.model_dump(mode="json"),
            "tokens_per_s": run.tokens_per_s,
            "acceptance_rate": run.acceptance_rate,
        }
        for run in measured
    ]
    return {"measured": rows, "recommendation": advice.model_dump(mode="json")}


def _print(measured: list[Measured], out: Console) -> None:
    plain = measured[0].tokens_per_s
    rows = [
        (
            run.policy.name,
            f"{run.tokens_per_s:.1f}",
            f"{100 * run.spread:.0f}%",
            f"{run.tokens_per_s / plain:.2f}",
            "-" if run.acceptance_rate is None else f"{run.acceptance_rate:.2f}",
            "yes" if run.ids_equal_plain else "NO",
        )
        for run in measured
    ]
    columns = ("policy", "tokens/s", "+-", "x plain", "acceptance", "same ids")
    out.print(table("measured", columns, rows, numbers=(1, 2, 3, 4)))
