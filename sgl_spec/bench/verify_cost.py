"""`sgl-spec bench verify-cost`: a target's forward over K guesses and one token, against one token alone."""

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sgl_spec.bench.options import QuickFlag, SaveFlag, finish
from sgl_spec.console import JsonFlag, people

if TYPE_CHECKING:
    from sgl_spec.cpu.microbench import Shape

MEANING = "V(4)/V(0): milliseconds of a target forward over 5 tokens / over 1 token, our kernel, batch 1, fp32"
ROWS = tuple(range(1, 10))  # K + 1


def verify_cost(
    prefix: Annotated[int, typer.Option(min=1, help="Tokens in the KV cache before the pass.")] = 256,
    series: Annotated[int, typer.Option(min=1, help="Series, each the least of five passes per K.")] = 7,
    threads: Annotated[int, typer.Option(min=1, help="Threads of both paths.")] = 1,
    quick: QuickFlag = False,
    save: SaveFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Whole forwards, output head included, of a model of the demo target's shape with random weights.

    Our kernel and PyTorch's (the Transformers model, eager, with its KV cache) take turns.

    Example: sgl-spec bench verify-cost --json
    """
    import torch

    from sgl_spec.cpu.linear import set_threads
    from sgl_spec.cpu.microbench import Shape, measure_forward

    out = people(json_output)
    shape, repeats = Shape(), 5
    if quick:
        shape, series, repeats, prefix = Shape(layers=2), 2, 1, 32
    torch.set_num_threads(threads)
    set_threads(threads)
    stock = torch_forward(shape, prefix)
    ours: list[dict[int, float]] = []
    theirs: list[dict[int, float]] = []
    for _ in range(series):
        ours.append(measure_forward(shape, "fp32", ROWS, repeats, prefix))
        theirs.append({m: stock(m, repeats) for m in ROWS})
    report(out, ours, theirs, threads, save, json_output)


def report(
    out: Console,
    ours: list[dict[int, float]],
    theirs: list[dict[int, float]],
    threads: int,
    save: bool,
    json_output: bool,
) -> None:
    """Print medians over the series; the spread is that of the series."""
    ratios = [one[5] / one[1] for one in ours]
    rows = []
    for m in ROWS:
        mine, stock = median(one[m] for one in ours), median(one[m] for one in theirs)
        rows.append(
            {
                "K": m - 1,
                "ours_ms": round(mine, 2),
                "ours_to_V0": round(median(one[m] / one[1] for one in ours), 3),
                "torch_ms": round(stock, 2),
                "torch_to_V0": round(median(one[m] / one[1] for one in theirs), 3),
                "torch_to_ours": round(median(a[m] / b[m] for a, b in zip(theirs, ours, strict=True)), 3),
            }
        )
    ratio = (median(ratios), min(ratios), max(ratios))
    finish(out, "verify-cost", MEANING, ratio, rows, threads=threads, save=save, json_output=json_output)


def torch_forward(shape: "Shape", prefix: int) -> Callable[[int, int], float]:
    """Return a function (tokens, repeats) -> least milliseconds of a forward after `prefix` tokens on PyTorch."""
    import torch
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    from sgl_spec.cpu.microbench import best_ms

    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.inter,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    cache = DynamicCache(config=config)
    ids = torch.arange(prefix + 32) % shape.vocab

    def milliseconds(tokens: int, repeats: int) -> float:
        def call() -> None:
            with torch.inference_mode():
                model(ids[None, prefix : prefix + tokens], past_key_values=cache, use_cache=True)
                cache.crop(prefix)

        return best_ms(call, repeats)

    with torch.inference_mode():
        model(ids[None, :prefix], past_key_values=cache, use_cache=True)
    return milliseconds
