"""`sgl-spec bench prefix`: requests that share a long prefix, against the same requests without sharing."""

from typing import Annotated, Any

import typer

from sgl_spec.bench.ab import MODEL_ONLY
from sgl_spec.bench.engine import Engine, pair, running
from sgl_spec.bench.load import Answer, Ask
from sgl_spec.bench.options import DraftOption, QuickFlag, SaveFlag, TargetOption, finish
from sgl_spec.bench.workloads import requests
from sgl_spec.console import JsonFlag, people
from sgl_spec.stats import acceptance_rate

MEANING = "time of all forks without sharing / with a shared prefix, prefill included"
GUESS = {**MODEL_ONLY, "controller": "fixed", "num_speculative_tokens": 3, "draft_confidence": 0.0}
FORKS = 8
WARM = 6  # tokens after the prefix alone: enough for a guess, so that the draft reads the prefix too
QUESTIONS = (
    "What is the first text about?", "Who is mentioned?", "Which numbers appear?", "List three facts.",
    "What happened last?", "Name one place.", "Give a title.", "What is disputed?",
    "What is the second text about?", "Who decides?", "Which dates appear?", "List two opinions.",
    "What happened first?", "Name one person.", "Give a one-line summary.", "What is planned?",
)  # fmt: skip


def prefix(
    target: TargetOption = None,
    draft: DraftOption = None,
    texts: Annotated[int, typer.Option(min=1, help="Texts in the prefix; six have about 700 tokens.")] = 6,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions with other texts.")] = 3,
    quick: QuickFlag = False,
    save: SaveFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """A long prefix, then eight forks at once, then eight more after other work: hits, acceptance, time.

    Example: sgl-spec bench prefix --json
    """
    out = people(json_output)
    tokens, forks = (8, 2) if quick else (32, FORKS)
    texts, rounds = (1, 1) if quick else (texts, rounds)
    models = pair(target, draft)
    documents = requests("summarization", texts * rounds)
    found: dict[str, list[Answer]] = {}
    ratios = []
    with running(*models, out) as engine:
        for number in range(rounds):
            head = "\n\n".join(documents[number * texts : (number + 1) * texts])
            series = _series(engine, head, number, forks, Ask(tokens, ignore_eos=True))
            ratios.append(_seconds(series, "cold") / _seconds(series, "shared"))
            for name, answer in series.items():
                found.setdefault(name, []).append(answer)
    rows = [_row(name, answers) for name, answers in found.items()]
    total = _total(found, "cold") / _total(found, "shared")
    ratio = (total, min(ratios), max(ratios))
    finish(out, "prefix", MEANING, ratio, rows, threads=engine.threads, save=save, json_output=json_output)


def _series(engine: Engine, head: str, number: int, forks: int, how: Ask) -> dict[str, Answer]:
    """All phases over one prefix; which side goes first changes from series to series."""
    first = [f"{head}\n\nQuestion: {question}\nAnswer:" for question in QUESTIONS[:forks]]
    later = [f"{head}\n\nQuestion: {question}\nAnswer:" for question in QUESTIONS[FORKS:][:forks]]
    answers: dict[str, Answer] = {}

    def shared() -> None:
        key = f"shared{number}"
        answers["shared: prefix alone"] = engine.client.ask(head, GUESS, Ask(WARM), key=key)
        answers["shared: forks"] = engine.client.ask(first, GUESS, how, key=key)
        engine.client.ask("Other work goes on in between.", GUESS, how, key=f"other{number}")
        answers["shared: forks later"] = engine.client.ask(later, GUESS, how, key=key)

    def cold() -> None:
        for name, texts in (("cold: forks", first), ("cold: forks later", later)):
            keys = [f"{name}{number}.{i}" for i in range(len(texts))]
            answers[name] = engine.client.ask(texts, GUESS, how, key=keys)

    for side in (cold, shared) if number % 2 else (shared, cold):
        side()
    return answers


def _seconds(series: dict[str, Answer], side: str) -> float:
    return sum(answer.seconds for name, answer in series.items() if name.startswith(side))


def _total(found: dict[str, list[Answer]], side: str) -> float:
    return sum(answer.seconds for name, own in found.items() if name.startswith(side) for answer in own)


def _row(name: str, answers: list[Answer]) -> dict[str, Any]:
    metas = [meta for answer in answers for meta in answer.metas]
    prompt = sum(meta["prompt_tokens"] for meta in metas)
    proposed = sum(answer.total("num_draft_tokens") for answer in answers)
    accepted = sum(answer.total("num_accepted_draft_tokens") for answer in answers)
    rate = acceptance_rate(accepted, proposed)
    return {
        "phase": name,
        "requests": len(metas),
        "prompt_tokens": prompt,
        "hit_rate_target": round(sum(meta["cached_tokens"] for meta in metas) / prompt, 3),
        "hit_rate_draft": round(sum(answer.total("num_cached_tokens_draft") for answer in answers) / prompt, 3),
        "seconds": round(sum(answer.seconds for answer in answers), 2),
        "acceptance_rate": None if rate is None else round(rate, 3),
        "tokens": sum(answer.tokens for answer in answers),
    }
