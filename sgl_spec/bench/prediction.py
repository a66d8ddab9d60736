"""`sgl-spec bench prediction`: a file is written again with a small change, its old text is the prediction."""

from difflib import SequenceMatcher
from statistics import mean
from typing import Annotated

from sgl_spec.bench.ab import MODEL_ONLY, PLAIN, Arm, ask_in_turn, ratio, summary
from sgl_spec.bench.edits import COPY, Edit, copy_task, edits, some_edits
from sgl_spec.bench.engine import pair, running
from sgl_spec.bench.load import Answer, Ask
from sgl_spec.bench.options import (
    DraftOption,
    QuickFlag,
    SaveFlag,
    TargetOption,
    TokensOption,
    finish,
    prompts_option,
)
from sgl_spec.console import JsonFlag, people

MEANING = "tokens/s with the old file as prediction / of plain decoding, the prompt's prefill left out of both"
PREDICTED, UNRELATED = "old file as prediction", "unrelated prediction"
ARMS = (Arm("plain", PLAIN), Arm(PREDICTED, MODEL_ONLY), Arm(UNRELATED, MODEL_ONLY))


def prediction(
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: Annotated[int, prompts_option("Edits, over the whole range of file lengths.")] = 5,
    max_new_tokens: TokensOption = 192,
    quick: QuickFlag = False,
    save: SaveFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Code edits of own files: old file as prediction, an unrelated file as prediction, and none.

    The draft cache and the search of the prompt are off, so that nothing but the prediction (and the draft
    model) guesses. Each prompt is read once unmeasured, since its prefill is the same for all. The edits of an arm
    share a program name, as those of an editor would.

    Example: sgl-spec bench prediction --prompts 20 --max-new-tokens 2048 --json
    """
    out = people(json_output)
    if quick:
        prompts, max_new_tokens = 1, 24
    models = pair(target, draft)
    chosen = some_edits(prompts)
    answers: dict[str, list[Answer]] = {arm.name: [] for arm in ARMS}
    with running(*models, out) as engine:
        for number, edit in enumerate(chosen):
            text, expected = copy_task(edit)
            others = [*edits()[(10 + number) % 20 :], *edits()]
            unrelated = copy_task(next(other for other in others if other is not edit))[1]
            given = {PREDICTED: expected, UNRELATED: unrelated}
            arms = [
                Arm(arm.name, {**arm.options, "prediction": given.get(arm.name), "program": arm.name}) for arm in ARMS
            ]
            turned = [*arms[number % 3 :], *arms[: number % 3]]
            for arm in arms:
                engine.client.ask(text, PLAIN, Ask(1), key=f"{edit.name}/{arm.name}")
            found = ask_in_turn(engine.client, turned, [text], Ask(max_new_tokens), run=edit.name)
            for name, one in found.items():
                answers[name] += one
            out.print(f"  {edit.name}: {edit.change}")
    likeness = [_likeness(e, a.texts[0]) for e, a in zip(chosen, answers["plain"], strict=True)]
    rows = [{"arm": arm.name, **summary(answers[arm.name], answers["plain"])} for arm in ARMS]
    rows[0]["answer_like_new_file"] = round(mean(likeness), 3)
    finish(
        out,
        "prediction",
        MEANING,
        ratio(answers[PREDICTED], answers["plain"]),
        rows,
        threads=engine.threads,
        save=save,
        json_output=json_output,
    )


def _likeness(edit: Edit, answer: str) -> float:
    """How like the rest of the new file an answer is, 1 for equal, over the answer's length."""
    begun = copy_task(edit)[0].rpartition(COPY.format(edit.name))[2]
    return SequenceMatcher(None, edit.new.removeprefix(begun)[: len(answer)], answer, autojunk=False).ratio()
