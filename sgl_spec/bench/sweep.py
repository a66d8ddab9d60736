"""`sgl-spec bench sweep`: fixed K and temperatures with the draft model alone, beside the article's figures."""

from typing import Annotated

from sgl_spec.bench.ab import MODEL_ONLY, PLAIN, Arm, Ratio, ask_in_turn, ratio, summary
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
from sgl_spec.control.expect import ARTICLE_RATES, ARTICLE_TEMPERATURES

MEANING = "tokens/s of the fastest fixed K with the draft model alone / of plain decoding, greedy"
K_OF_TEMPERATURES = 5


def sweep(
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: Annotated[int, prompts_option("Prompts of each of chat and code.")] = 2,
    max_new_tokens: TokensOption = 64,
    quick: QuickFlag = False,
    save: SaveFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """K = 3, 5, 7, 10 greedily, and K = 5 at temperatures 0.3, 0.7, 1.0, 1.2; no cache, no early stop.

    Example: sgl-spec bench sweep --json
    """
    out = people(json_output)
    if quick:
        prompts, max_new_tokens = 1, 12
    models = pair(target, draft)
    texts = [text for task in ("chat", "code") for text in chat_prompts(models[0], task, prompts)]
    arms = [Arm("plain", PLAIN), *[_fixed(k) for k in ARTICLE_RATES]]
    hot_arms = [Arm("plain", PLAIN), _fixed(K_OF_TEMPERATURES)]
    rows = []
    with running(*models, out) as engine:
        answers = ask_in_turn(engine.client, arms, texts, Ask(max_new_tokens, ignore_eos=True), run="K")
        for arm in arms:
            known = next((rate for k, rate in ARTICLE_RATES.items() if arm.name == f"K={k}"), None)
            row = {"temperature": 0.0, "arm": arm.name, **summary(answers[arm.name], answers["plain"])}
            rows.append({**row, "article_acceptance": known})
        for temperature in ARTICLE_TEMPERATURES:
            how = Ask(max_new_tokens, temperature, ignore_eos=True)
            found = ask_in_turn(engine.client, hot_arms, texts, how, run=f"T={temperature}")
            for arm in hot_arms:
                row = {"temperature": temperature, "arm": arm.name, **summary(found[arm.name], found["plain"])}
                rows.append({**row, "same_ids": None})  # samples differ
    best: Ratio = max((ratio(answers[arm.name], answers["plain"]) for arm in arms[1:]), key=lambda one: one.value)
    finish(out, "sweep", MEANING, best, rows, threads=engine.threads, save=save, json_output=json_output)


def _fixed(k: int) -> Arm:
    fixed = {**MODEL_ONLY, "controller": "fixed", "num_speculative_tokens": k, "draft_confidence": 0.0}
    return Arm(f"K={k}", fixed)
