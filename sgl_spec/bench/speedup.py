"""`sgl-spec bench speedup`: plain, draft model only, cache only, and all sources, on cold prompts."""

from typing import Annotated

from sgl_spec.bench.ab import MODEL_ONLY, PLAIN, Arm, ask_in_turn, mean_ratio, summary
from sgl_spec.bench.engine import pair, running
from sgl_spec.bench.load import Ask
from sgl_spec.bench.options import (
    DraftOption,
    QuickFlag,
    SaveFlag,
    TargetOption,
    TokensOption,
    finish,
    prompts_option,
)
from sgl_spec.bench.workloads import chat_prompts
from sgl_spec.console import JsonFlag, people
from sgl_spec.train.prompts import TASKS

MEANING = "tokens/s with all sources / tokens/s of plain decoding by the same engine, geometric mean of the tasks"
ARMS = (
    Arm("plain", PLAIN),
    Arm("draft only", MODEL_ONLY),
    Arm("cache only", {"draft_model": False}),
    Arm("all", {}),
)


def speedup(
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: Annotated[int, prompts_option()] = 6,
    max_new_tokens: TokensOption = 96,
    quick: QuickFlag = False,
    save: SaveFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """What guessing brings on cold prompts: chat, code and summarization, by source of the guesses.

    Times include the prompt's prefill.

    Example: sgl-spec bench speedup --prompts 12 --json
    """
    out = people(json_output)
    if quick:
        prompts, max_new_tokens = 1, 16
    models = pair(target, draft)
    asked = {task: chat_prompts(models[0], task, prompts) for task in TASKS}
    rows, pairs = [], []
    with running(*models, out) as engine:
        for task, texts in asked.items():
            answers = ask_in_turn(engine.client, ARMS, texts, Ask(max_new_tokens), run=task)
            rows += [{"task": task, "arm": arm.name, **summary(answers[arm.name], answers["plain"])} for arm in ARMS]
            pairs.append((answers["all"], answers["plain"]))
            out.print(f"  {task} done")
    finish(
        out,
        "speedup",
        MEANING,
        mean_ratio(pairs),
        rows,
        threads=engine.threads,
        save=save,
        json_output=json_output,
    )
