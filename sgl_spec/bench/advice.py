"""`sgl-spec bench advice`: is what `advise --measure` recommends the best of an exhaustive sweep?"""

from pathlib import Path
from typing import Annotated, Any

from sgl_spec.advise.measure import Measured, measure, policies
from sgl_spec.advise.recommend import recommend
from sgl_spec.bench.drafts import kept_folder, random_draft
from sgl_spec.bench.engine import pair, running
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

MEANING = "tokens/s of the advised policy / of the best policy of a later sweep of K = 1 to 8, the least of three pairs"
SWEPT = tuple(range(1, 9))


def advice(
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: Annotated[int, prompts_option("Prompts of each of chat and code.")] = 2,
    max_new_tokens: TokensOption = 40,
    quick: QuickFlag = False,
    save: SaveFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Advice for three drafts, each against a sweep: the pair's, the target itself, and random weights.

    First the policies of `advise --measure` and its recommendation, then plain decoding, the adaptive policy and
    each K on the same prompts again. The spread is from the least to the greatest of the three.

    Example: sgl-spec bench advice --json
    """
    out = people(json_output)
    if quick:
        prompts, max_new_tokens = 1, 8
    models = pair(target, draft)
    texts = [text for task in ("chat", "code") for text in chat_prompts(models[0], task, prompts)]
    drafts = {"the pair": models[1]}
    if not quick:
        drafts["target as its own draft"] = models[0]
        drafts["random weights"] = str(random_draft(Path(models[0]), kept_folder(Path(models[0]), "random-draft")))
    rows: list[dict[str, Any]] = []
    for name, folder in drafts.items():
        with running(models[0], folder, out) as engine:
            http = engine.client.http
            advised = recommend(measure(http, texts, policies(), max_new_tokens), folder)
            swept = measure(http, texts, policies(fixed=SWEPT), max_new_tokens)
        rows.append(_row(name, advised.policy, advised.speculate, swept))
    ratios = [row["advised_to_best"] for row in rows]
    found = (min(ratios), min(ratios), max(ratios))
    finish(out, "advice", MEANING, found, rows, threads=engine.threads, save=save, json_output=json_output)


def _row(name: str, policy: str, speculate: bool, swept: list[Measured]) -> dict[str, Any]:
    speed = {run.policy.name: run.tokens_per_s for run in swept}
    best = max(speed, key=lambda one: speed[one])
    rates = [run.acceptance_rate for run in swept if run.acceptance_rate is not None]
    return {
        "draft": name,
        "advised": policy if speculate else "do not speculate",
        "best_of_sweep": best,
        "advised_tokens_per_s": round(speed[policy], 2),
        "best_tokens_per_s": round(speed[best], 2),
        "advised_to_best": round(speed[policy] / speed[best], 3),
        "plain_tokens_per_s": round(speed["plain"], 2),
        "acceptance_rate": [round(min(rates), 3), round(max(rates), 3)] if rates else None,
        "same_ids": all(run.ids_equal_plain for run in swept),
    }
