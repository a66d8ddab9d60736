"""`sgl-spec distill`: make a draft for a target, or measure one."""

from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from sgl_spec.console import JsonFlag, emit, people, table
from sgl_spec.errors import ConfigError


class _DefaultGroup(TyperGroup):
    """A group in which `distill TARGET ...` means `distill run TARGET ...`."""

    def resolve_command(self, ctx, args):  # type: ignore[no-untyped-def]
        """Put the default command in front of what names no command."""
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_DefaultGroup,
    add_completion=False,
    rich_markup_mode="rich",
    help="Make a draft for a target, or measure one.",
)
Target = Annotated[Path, typer.Argument(help="Folder of the target (Llama, with a fast tokenizer).")]


@app.command()
def run(
    target: Target,
    out: Annotated[Path, typer.Option(help="New folder for the draft.")],
    layers: Annotated[int, typer.Option(min=1, help="Depth: the target's first layers start it.")] = 2,
    heads: Annotated[
        int | None, typer.Option(min=1, help="Query heads per layer; default: all of the target's.")
    ] = None,
    mlp_width: Annotated[
        int | None, typer.Option(min=1, help="MLP neurons per layer; default: all of the target's.")
    ] = None,
    tune_embeddings: Annotated[
        bool, typer.Option("--tune-embeddings", help="Train the input embeddings too: a far larger file.")
    ] = False,
    hot_tokens: Annotated[int, typer.Option(min=1, help="Size of the hot-token head, in tokens.")] = 12288,
    head_storage: Annotated[str, typer.Option(help="How the engine keeps that head: fp32, bf16 or int8.")] = "bf16",
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps.")] = 1000,
    tokens_per_step: Annotated[int, typer.Option(min=1, help="Answer tokens per step.")] = 1024,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Tokens that the target generates.")] = 400_000,
    text: Annotated[list[Path] | None, typer.Option(help="Own text or JSON lines to add.")] = None,
    stop_if_gain_below: Annotated[
        float, typer.Option(help="Stop when a quarter of the steps gains less acceptance than this.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the order of the data.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json_output: JsonFlag = False,
) -> None:
    """Distil a draft for TARGET, prove it on held-out prompts and write it to --out.

    An interrupted run continues when the same command is given again.

    \b
    Examples:
      sgl-spec distill TARGET --out DRAFT
      sgl-spec distill TARGET --out DRAFT --stop-if-gain-below 0.02 --text notes.jsonl
      sgl-spec distill evaluate DRAFT --target TARGET --json
    """
    from rich.progress import Progress as Bar
    from rich.progress import TaskID, TimeRemainingColumn

    from sgl_spec.train.config import TrainConfig
    from sgl_spec.train.distil import Reporter, distill
    from sgl_spec.train.loop import Progress
    from sgl_spec.train.proof import COLUMNS, rows

    config = TrainConfig(
        init_layers=tuple(range(layers)),
        heads=heads,
        mlp_width=mlp_width,
        tune_embeddings=tune_embeddings,
        head_storage=head_storage,
        hot_tokens=hot_tokens,
        steps=steps,
        tokens_per_step=tokens_per_step,
        learning_rate=learning_rate,
        warmup_steps=min(40, max(1, steps // 10)),
        seed=seed,
        device=device,
    )
    screen = people(json_output)
    with Bar(*Bar.get_default_columns()[:-1], TimeRemainingColumn(), console=screen) as bar:
        phases: dict[str, TaskID] = {}

        def count(phase: str, done: int, of: int) -> None:
            if phase not in phases:
                phases[phase] = bar.add_task(phase)
            bar.update(phases[phase], completed=done, total=of)

        def step(progress: Progress) -> None:
            count("training steps", progress.step, progress.steps)

        reporter = Reporter(screen.print, count, step)
        result = distill(
            target,
            out,
            config,
            text_files=text,
            answer_tokens=answer_tokens,
            stop_if_gain_below=stop_if_gain_below,
            reporter=reporter,
        )
    proof = result.proof
    screen.print(table("Acceptance on held-out prompts", COLUMNS, rows(result.before, proof)))
    verdict = "helps" if result.helps else "does not help"
    screen.print(f"The draft {verdict}: {result.folder}, {proof.draft_step_ms:.2f} ms per step.")
    if json_output:
        emit(proof.document() | {"draft": str(result.folder), "helps": result.helps})


@app.command()
def evaluate(
    draft: Annotated[Path, typer.Argument(help="Folder of the draft, or 'demo'.")],
    target: Annotated[Path | None, typer.Option(help="Folder of its target; default: the demo target.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """Measure DRAFT on the held-out prompts: acceptance, coverage, step time, size.

    \b
    Examples:
      sgl-spec distill evaluate demo --json
      sgl-spec distill evaluate DRAFT --target TARGET
    """
    from sgl_spec.models import demo_draft, demo_target
    from sgl_spec.train.proof import COLUMNS, prove, rows
    from sgl_spec.train.texts import held_out_answers

    folder = demo_draft() if str(draft) == "demo" else draft
    if not folder.is_dir():
        raise ConfigError(f"draft={draft} is no folder; give the folder of a draft model.")
    judge = target or demo_target()
    proof = prove(folder, judge, held_out_answers(judge))
    screen = people(json_output)
    screen.print(table(f"Draft {folder.name}", COLUMNS, rows(None, proof)))
    screen.print(f"{proof.draft_step_ms:.2f} ms per draft step, {proof.file_mb:.1f} MB of its own.")
    if json_output:
        emit(proof.document())
