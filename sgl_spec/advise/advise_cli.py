"""`sgl-spec advise`: which draft for a target, and whether it can pay."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sgl_spec.advise.candidates import Candidate, Use, candidates, model_folders, read_target
from sgl_spec.advise.hardware import HARDWARE, hardware_called
from sgl_spec.advise.resolve import resolve
from sgl_spec.console import JsonFlag, emit, people, table

SHOWN = 0.7  # acceptance of the gain that the table shows


def advise(
    target: Annotated[str, typer.Argument(help="Model folder, or a known model's name (sgl-spec plan --list).")],
    *,
    search: Annotated[list[Path] | None, typer.Option(help="Folder with model folders; repeatable.")] = None,
    hardware: Annotated[str, typer.Option(help=f"One of {', '.join(HARDWARE)}.")] = "h100",
    tp_size: Annotated[int, typer.Option(min=1, help="Devices that share each model.")] = 1,
    dtype: Annotated[str | None, typer.Option(help="Default: bfloat16, on cpu-core float32.")] = None,
    quantization: Annotated[str | None, typer.Option(help="Of both models, SGLang's name.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests that decode at once.")] = 1,
    context_length: Annotated[int, typer.Option(min=1, help="Tokens of a long request.")] = 4096,
    price_per_hour: Annotated[float | None, typer.Option(min=0, help="Of all devices; any currency.")] = None,
    measure: Annotated[Path | None, typer.Option(help="Prompts, one a line: run the engine on them.")] = None,
    draft: Annotated[Path | None, typer.Option(help="Draft folder to measure; default: the best found.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=8, help="Tokens per measured answer.")] = 64,
    json_output: JsonFlag = False,
) -> None:
    """Which draft for a target: family, speed, vocabulary, context, licence, gain.

    The gains are estimates from sizes and data sheets at an assumed acceptance;
    --measure starts the engine and replaces them by what was measured.

    \b
    Examples:
      sgl-spec advise Qwen2.5-72B --hardware h100 --tp-size 4 --price-per-hour 10
      sgl-spec advise ./target --search ./models --hardware cpu-core --json
      sgl-spec advise ./target --draft ./draft --measure prompts.txt
    """
    device = hardware_called(hardware).shared_by(tp_size)
    model, _ = resolve(target)
    dtype = dtype or ("float32" if hardware == "cpu-core" else "bfloat16")
    model = model.model_copy(update={"dtype": dtype, "quantization": quantization})
    known = read_target(target, model)
    folders = sorted({folder for root in search or [] for folder in model_folders(root)})
    use = Use(hardware=device, requests=requests, context=context_length, price_per_hour=price_per_hour)
    found = candidates(known, folders, use)
    best = next((candidate for candidate in found if candidate.usable), None)
    advice = _advice(model.shape.name, best)
    _print(model.shape.name, found, use, advice, json_output)
    document: dict[str, Any] = {
        "target": model.shape.name,
        "use": use.model_dump(mode="json"),
        "best": best.name if best else None,
        "advice": advice,
        "candidates": [candidate.model_dump(mode="json") for candidate in found],
    }
    if measure is not None:
        from sgl_spec.advise.measure_run import measure_pair

        chosen = draft or (best.folder if best else None)
        document |= measure_pair(model.folder, chosen, measure, max_new_tokens, people(json_output))
    if json_output:
        emit(document)


def _advice(target: str, best: Candidate | None) -> list[str]:
    if best is None:
        return [
            f"No known smaller model fits {target}: distil one (sgl-spec distill), or run without a draft "
            "model, where cached outputs and predictions still draft.",
        ]
    middle = next(outcome for outcome in best.benefit.outcomes if outcome.acceptance == SHOWN)
    return [
        f"Measure {best.name} first: --speculative-draft-model-path {best.folder or best.name} "
        f"--num-speculative-tokens {max(1, middle.num_speculative_tokens)}",
        f"It is {best.times_faster:.0f} times faster, {best.why}, and at {SHOWN:.0%} acceptance it would "
        f"give {middle.speedup:.2f} times the speed for {best.memory_gb:.1f} GB and "
        f"{middle.extra_flops_percent:.0f}% more operations per token.",
        "Acceptance depends on the texts; until it is measured this is an estimate.",
    ]


def _print(target: str, found: list[Candidate], use: Use, advice: list[str], json_output: bool) -> None:
    out = people(json_output)
    rows = []
    for c in found:
        gain = next(outcome for outcome in c.benefit.outcomes if outcome.acceptance == SHOWN)
        claim = " (the article's pair)" if c.article_claim else ""
        overlap = "?" if c.vocabulary_overlap is None else f"{c.vocabulary_overlap:.0%}"
        rows.append(
            (
                ("" if c.usable else "- ") + c.name + claim,
                f"{c.times_faster:.1f}",
                overlap,
                c.context,
                f"{gain.speedup:.2f} (K={gain.num_speculative_tokens})",
                f"{c.memory_gb:.1f}",
                c.licence,
            )
        )
    columns = ("draft", "x faster", "ids", "context", f"gain at {SHOWN:.0%}", "GB", "licence")
    if rows:
        title = f"drafts for {target} on {use.hardware.name}, {use.requests} at once"
        out.print(table(title, columns, rows, numbers=(1, 2, 3, 4, 5)), "")
    for line in advice:
        out.print(line)
    if found and use.price_per_hour is not None:
        best = found[0].benefit
        gain = next(outcome for outcome in best.outcomes if outcome.acceptance == SHOWN)
        plain, price = best.plain_price_per_million or 0.0, gain.price_per_million or 0.0
        out.print(f"Per million tokens: {plain:.2f} plain, {price:.2f} with {found[0].name} at {SHOWN:.0%}.")
    refused = [candidate for candidate in found if not candidate.usable]
    for candidate in refused:
        out.print(f"- {candidate.name}: {candidate.why}.")
