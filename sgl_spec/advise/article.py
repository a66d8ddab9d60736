"""The article's memory plan, 72 + 7 + 16 + 2 + 5 = 102 GB, and what holds of it.

The five figures are the article's claim. Beside each stands what the planner computes for a published
72B + 7B pair (Qwen2.5) with the KV pool that the article's 16 GB hold.
"""

from itertools import combinations

from pydantic import BaseModel

from sgl_spec.advise.families import find
from sgl_spec.advise.plan import GB, Line, Model, Plan, PlanRequest, make_plan
from sgl_spec.errors import ConfigError

CLAIMED = {
    "target weights": (72.0, "72 billion parameters x 1 byte (INT8)"),
    "draft weights": (7.0, "7 billion parameters x 1 byte (INT8)"),
    "target KV": (16.0, "given without context length or number of requests"),
    "draft KV": (2.0, "an eighth of the target's, given without a reason"),
    "activations": (5.0, "buffers of both models, given without a reason"),
}
PERCENTAGES = (13, 10, 5)
_BASES = {
    "target weights": ("target weights",),
    "target weights + KV": ("target weights", "target KV"),
    "all but the draft": ("target weights", "target KV", "activations"),
    "the total": tuple(CLAIMED),
}
_EXTRAS = ("draft weights", "draft KV", "activations")


class Percentage(BaseModel):
    """One of the article's percentages and the ratios of its own lines that round to it."""

    claimed: int
    matches: list[str]


class ArticlePlan(Plan):
    """The article's plan with our check of each figure."""

    recomputed: Plan
    percentages: list[Percentage]
    verdict: list[str]


def article_plan() -> ArticlePlan:
    """The article's lines, the same pair computed, and the check of its percentages."""
    lines = [Line(name=name, gb=gb, gb_per_device=gb, how=how) for name, (gb, how) in CLAIMED.items()]
    total = sum(line.gb for line in lines)
    without = _sum(_BASES["all but the draft"])
    recomputed = make_plan(_request())
    return ArticlePlan(
        title="the article: INT8 72B + 7B",
        lines=lines,
        total_gb=total,
        total_gb_per_device=total,
        without_draft_gb=without,
        draft_percent=100 * (total / without - 1),
        recomputed=recomputed,
        percentages=[Percentage(claimed=value, matches=_matches(value)) for value in PERCENTAGES],
        verdict=_verdict(total, without, recomputed),
    )


def _request() -> PlanRequest:
    """Qwen2.5 72B + 7B in INT8 with as many KV slots as the article's 16 GB hold in bf16."""
    models = []
    for name in ("Qwen2.5-72B", "Qwen2.5-7B"):
        known = find(name)
        if known is None:
            raise ConfigError(f"{name} is missing in the table of families: restore its row.")
        models.append(Model(shape=known.shape, quantization="w8a8_int8"))
    slots = int(CLAIMED["target KV"][0] * GB / models[0].kv_bytes_per_token(1))
    return PlanRequest(target=models[0], draft=models[1], max_total_tokens=slots)


def _sum(names: tuple[str, ...]) -> float:
    return sum(CLAIMED[name][0] for name in names)


def _ratios() -> dict[str, float]:
    """Percent of each sum of lines that a draft may add, over each base that one may compare with."""
    result = {}
    for size in (1, 2, 3):
        for extra in combinations(_EXTRAS, size):
            for base, names in _BASES.items():
                share = 100 * _sum(extra) / _sum(names)
                top, bottom = " + ".join(f"{CLAIMED[name][0]:g}" for name in extra), f"{_sum(names):g}"
                result[f"({top}) / {bottom}: {' + '.join(extra)} over {base} = {share:.1f}%"] = share
    return result


def _matches(claimed: int) -> list[str]:
    """Ratios within half a percent of the claim, nearest first."""
    near = {text: abs(share - claimed) for text, share in _ratios().items()}
    return [text for text, distance in sorted(near.items(), key=lambda item: item[1]) if distance <= 0.5]


def _verdict(total: float, without: float, recomputed: Plan) -> list[str]:
    both, base = _sum(("draft weights", "draft KV")), _sum(_BASES["target weights + KV"])
    kv = recomputed.line("draft KV").gb / recomputed.line("target KV").gb
    slots = recomputed.line("target KV").how.split()[0]
    whole = _sum(_EXTRAS) / base * 100
    weights = recomputed.line("target weights").gb
    return [
        f"The lines add up: {' + '.join(f'{gb:g}' for gb, _ in CLAIMED.values())} = {total:g} GB.",
        f"The draft adds {total - without:g} GB to {without:g}: +{100 * (total / without - 1):.1f}%; "
        f"if the 5 GB of buffers are also its doing, {_sum(_EXTRAS):g} on {base:g}: +{whole:.1f}%.",
        f"+13% fits {both:g} GB over the target's weights alone ({100 * both / 72:.1f}%, rounded up): that "
        "leaves the KV cache out of the base.",
        "10 + 5 is 15, so +13% is no sum of the other two, and neither is the growth of the whole.",
        *_common_bases(),
        f"16 GB of bf16 KV are {slots} slots of a 72B with 8 KV heads; the 7B needs {100 * kv:.1f}% of the "
        f"target's KV for the same slots, {kv * 16:.1f} GB, and not 2.",
        f"INT8 does not shrink embeddings: the 72B takes {weights:.1f} GB, and not 72.",
    ]


def _common_bases() -> list[str]:
    """For each base whether all three claims can be read over it, and if so how."""
    sentences = []
    for base, names in _BASES.items():
        readings = {
            claimed: [text.split(":")[0] for text in _matches(claimed) if f" over {base} =" in text]
            for claimed in PERCENTAGES
        }
        missing = [f"+{claimed}%" for claimed, found in readings.items() if not found]
        if missing:
            sentences.append(f"Over {base} ({_sum(names):g} GB) nothing gives {' or '.join(missing)}.")
        else:
            how = ", ".join(f"+{claimed}% = {found[0]}" for claimed, found in readings.items())
            sentences.append(f"Over {base} ({_sum(names):g} GB) all three can be read ({how}), with overlapping lines.")
    return sentences
