"""`sgl-spec bench worst-case`: where guessing cannot pay, what does it cost?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from sgl_spec.bench.ab import PLAIN, Arm, Ratio, ask_in_turn, ratio, summary
from sgl_spec.bench.drafts import kept_folder, random_draft
from sgl_spec.bench.engine import Engine, pair, running
from sgl_spec.bench.load import Ask
from sgl_spec.bench.options import DraftOption, QuickFlag, SaveFlag, TargetOption, finish, prompts_option
from sgl_spec.bench.workloads import CREATIVE, TASKS, chat_prompts
from sgl_spec.console import JsonFlag, people

MEANING = "tokens/s of the adaptive default / of plain decoding, the least of the cases"
ARMS = (Arm("plain", PLAIN), Arm("default", {}))
BATCH = 16


def worst_case(
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: Annotated[int, prompts_option("Prompts of the cases at batch 1.")] = 8,
    quick: QuickFlag = False,
    save: SaveFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Four cases that a fixed K loses: a draft that is always wrong, hot sampling, a full batch, short answers.

    The draft of random weights runs in an engine of its own, without the draft cache; the other cases run on
    the pair with all sources.

    Example: sgl-spec bench worst-case --json
    """
    out = people(json_output)
    models = pair(target, draft)
    long, batches, batch = (16, 1, 4) if quick else (64, 2, BATCH)
    prompts = 2 if quick else prompts
    chat = chat_prompts(models[0], "chat", prompts)
    full = [text for task in TASKS for text in chat_prompts(models[0], task, batch * batches)]
    creative = chat_prompts(models[0], CREATIVE, prompts)
    short = chat_prompts(models[0], "summarization", 2 * prompts)
    in_batches = [full[i : i + batch] for i in range(0, len(full), batch)]
    cases: list[tuple[str, Sequence[str | Sequence[str]], Ask]] = [
        ("temperature 1.2, creative", creative, Ask(long, temperature=1.2, ignore_eos=True)),
        (f"batch {batch}", in_batches, Ask(long, ignore_eos=True)),
        ("answers of 8 tokens", short, Ask(8)),
    ]
    with running(*models, out) as engine:
        found = [_case(engine, *case) for case in cases]
    bad = str(random_draft(Path(models[0]), kept_folder(Path(models[0]), "random-draft")))
    with running(models[0], bad, out, draft_cache=False) as engine:
        found.insert(0, _case(engine, "draft of random weights", chat, Ask(long, ignore_eos=True)))
    least = min((against for against, _ in found), key=lambda against: against.value)
    rows = [row for _, own in found for row in own]
    finish(out, "worst-case", MEANING, least, rows, threads=engine.threads, save=save, json_output=json_output)


def _case(
    engine: Engine, name: str, calls: Sequence[str | Sequence[str]], how: Ask
) -> tuple[Ratio, list[dict[str, Any]]]:
    answers = ask_in_turn(engine.client, ARMS, calls, how, run=name)
    rows = [{"case": name, "arm": arm.name, **summary(answers[arm.name], answers["plain"])} for arm in ARMS]
    if how.temperature:
        for row in rows:
            row["same_ids"] = None  # samples differ
    return ratio(answers["default"], answers["plain"]), rows
