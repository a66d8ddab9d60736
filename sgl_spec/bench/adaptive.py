"""`sgl-spec bench adaptive`: the adaptive controller against every fixed K, by task and on their mix."""

import random
from typing import Annotated

from sgl_spec.bench.ab import Arm, ask_in_turn, rate, ratio, summary
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

MEANING = "tokens/s of the adaptive controller / of fixed K=5, on a shuffled mix of chat, code and summarization"
LENGTHS = (0, 1, 2, 3, 5, 8)
ADAPTIVE = Arm("adaptive", {"controller": "throughput"})
MIX = "mix"


def adaptive(
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: Annotated[int, prompts_option()] = 4,
    max_new_tokens: TokensOption = 64,
    quick: QuickFlag = False,
    save: SaveFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Whether choosing K while running beats every fixed K; all sources of guesses are on for both.

    The prompts of the three tasks arrive shuffled and under one program name, so the controller is not told
    the task; a task's rows are its prompts of that one series.

    Example: sgl-spec bench adaptive --json
    """
    out = people(json_output)
    if quick:
        prompts, max_new_tokens = 1, 12
    models = pair(target, draft)
    arms = [ADAPTIVE, *[Arm(f"K={k}", {"controller": "fixed", "num_speculative_tokens": k}) for k in LENGTHS]]
    mixed = [(task, text) for task in TASKS for text in chat_prompts(models[0], task, prompts)]
    random.Random(0).shuffle(mixed)  # noqa: S311 - an order, not a secret
    with running(*models, out) as engine:
        answers = ask_in_turn(
            engine.client,
            arms,
            [text for _, text in mixed],
            Ask(max_new_tokens),
            lambda done, total: out.print(f"  {done} of {total} prompts") if done % 5 == 0 else None,
        )
    rows = []
    for task in (*TASKS, MIX):
        chosen = [i for i, (own, _) in enumerate(mixed) if task in (own, MIX)]
        of = {arm.name: [answers[arm.name][i] for i in chosen] for arm in arms}
        best = max((arm.name for arm in arms[1:]), key=lambda name: rate(of[name]))
        for arm in arms:
            against = ratio(of["adaptive"], of[arm.name])
            rows.append(
                {
                    "task": task,
                    "arm": arm.name + (" (best fixed)" if arm.name == best else ""),
                    **summary(of[arm.name], of["K=0"]),
                    "adaptive_to_this": round(against.value, 3),
                    "adaptive_spread": [round(against.low, 3), round(against.high, 3)],
                }
            )
    finish(
        out,
        "adaptive",
        MEANING,
        ratio(answers["adaptive"], answers["K=5"]),
        rows,
        threads=engine.threads,
        save=save,
        json_output=json_output,
    )
