"""`sgl-spec certify`: is this draft lossless for this target, on this machine, with these versions?"""

from pathlib import Path
from typing import Annotated

import typer

from sgl_spec.bench.engine import Engine, running
from sgl_spec.bench.options import QuickFlag
from sgl_spec.bench.provenance import provenance
from sgl_spec.bench.workloads import chat_prompts
from sgl_spec.certify_law import LawTest, check_law, exact_law
from sgl_spec.certify_parity import check_options, check_ways
from sgl_spec.certify_report import Certificate, doubts_of
from sgl_spec.console import JsonFlag, emit, people, table
from sgl_spec.errors import ConfigError
from sgl_spec.train.prompts import TASKS

STORY = "Once upon a time, in a small village,"
OPTION_PROMPT = "A list of the planets, from the sun:"
TEMPERATURES = (0.7, 1.3)


def certify(
    target: Annotated[Path, typer.Argument(help="Folder of the target model.")],
    draft: Annotated[Path, typer.Argument(help="Folder of its draft model.")],
    *,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts per task for greedy parity.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(min=8, help="Tokens per answer.")] = 32,
    draws: Annotated[int, typer.Option(min=32, help="Samples per temperature.")] = 640,
    alpha: Annotated[float, typer.Option(help="Chance of a false alarm per chi-square test.")] = 1e-4,
    out: Annotated[Path, typer.Option(help="The report: OUT.json and OUT.md.")] = Path("certificate"),
    quick: QuickFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Greedy parity, the law of sampled tokens, and the options that switch speculation off.

    Everything is compared with plain decoding by the same engine. Exit status 1 on any doubt.

    Example: sgl-spec certify ./target ./draft --out reports/pair --json
    """
    if not 0.0 < alpha < 0.1:
        raise ConfigError(f"alpha={alpha} is no chance of a false alarm: use one between 0 and 0.1, such as 1e-4.")
    if quick:
        prompts, max_new_tokens, draws = 1, 12, 64
    console = people(json_output)
    texts = [text for task in TASKS for text in chat_prompts(str(target), task, prompts)]
    with running(str(target), str(draft), console) as engine:
        parity = check_ways(engine.client, texts, max_new_tokens)
        console.print(f"  {len(parity)} comparisons with plain decoding")
        options = check_options(engine.client, OPTION_PROMPT, max_new_tokens)
        console.print(f"  {len(options)} request options")
        law = _law(engine, draws, alpha)
        console.print(f"  {len(law)} laws of {draws} draws")
        threads = engine.threads
    doubts, remarks = doubts_of(parity, options, law)
    result = Certificate(
        target=target.name,
        draft=draft.name,
        parity=parity,
        options=options,
        law=law,
        doubts=doubts,
        remarks=remarks,
        provenance=provenance(threads),
    )
    rows = [
        (check.name, f"{check.equal} of {check.answers}", f"{check.accepted} of {check.proposed}") for check in parity
    ]
    console.print(table("greedy parity", ("guesses from", "equal", "accepted"), rows))
    laws = [(test.name, test.temperature, test.statistic, test.threshold, f"{test.p_value:.3g}") for test in law]
    console.print(table("law", ("guesses from", "temperature", "chi-square", "threshold", "p"), laws, (1, 2, 3, 4)))
    for line in [*(f"DOUBT: {doubt}" for doubt in doubts), *remarks]:
        console.print(line)
    data, page = result.write(out)
    console.print(f"{'passed' if result.passed else 'FAILED'}; written to {data} and {page}")
    if json_output:
        emit({**result.model_dump(mode="json"), "passed": result.passed})
    if not result.passed:
        raise typer.Exit(1)


def _law(engine: Engine, draws: int, alpha: float) -> list[LawTest]:
    from transformers import AutoTokenizer

    ids: list[int] = AutoTokenizer.from_pretrained(engine.target)(STORY)["input_ids"]
    law = exact_law(engine.client, ids)
    everything = {"controller": "fixed", "num_speculative_tokens": 3, "namespace": "law", "draft_confidence": 0.0}
    tests = [check_law(engine.client, "draft model", ids, law, t, draws, alpha) for t in TEMPERATURES]
    return [*tests, check_law(engine.client, "all sources", ids, law, TEMPERATURES[0], draws, alpha, everything)]
