"""What a round costs: T = overhead + catch-up + draft steps + verify(batch, extra rows, context), fitted online.

Each part is a small linear model in the round's shape, a Kalman filter with clipped innovations: outliers
(a prefill in between, a pause of the machine) move it little, a drift of the whole machine moves all of it
(process noise along the coefficients themselves, so that shapes not run lately drift along). What a straight
line cannot say about the verify pass (kernels have steps) is kept per shape as a ratio; a shape that was never run
takes it from its neighbours.

Attention reads the KV of what came before, once per request and, as far as it is arithmetic, once per row: `context`
is in thousands of tokens here.

Before anything is measured, all parts are guesses relative to one plain token; only ratios matter to a plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from operator import mul
from typing import Any

from sgl_spec.control.base import RoundRecord

CLIP = 3.0  # an innovation counts for at most so many standard deviations
NOISE = 0.05  # first guess of the relative measurement noise
DRIFT = 2e-5  # process noise per round, relative, along the coefficients
SHAPES = 128  # verify shapes remembered per batch size, and batch sizes
RECENT = 9  # rounds of a shape whose median counts
OUTLIER, OUTLIERS = 1.6, 3  # times the expected cost: ignored, unless so many come in a row
SHAPE_STRENGTH = 1.0  # rounds that the straight line is worth against a shape's own ratio

KILO = 1e-3  # tokens to thousands of tokens

# Guesses relative to a plain token at batch 1: (constant, per request, per extra row, any extra row at all, per
# thousand tokens of context of each request, and of each extra row).
VERIFY_GUESS = (0.75, 0.25, 0.08, 0.02, 0.08, 0.02)
DRAFT_GUESS = (0.10, 0.01, 0.01)  # (constant, per row, per row and thousand tokens of context) of a draft step
CATCHUP_GUESS = (0.11, 0.01, 0.005)  # (constant, per token, per token and thousand tokens of context)
OVERHEAD_GUESS = (0.02, 0.005, 0.02)  # (constant, per request, any draft at all)


@dataclass(slots=True)
class Line:
    """y ~ theta . x, robust and recursive. `guess` gives the proportions before the first observation."""

    guess: tuple[float, ...]
    theta: list[float] = field(init=False)
    spread: list[list[float]] = field(init=False)  # covariance of theta
    noise: float = 0.0  # standard deviation of y; 0 = nothing seen
    count: int = 0
    odd: int = 0  # outliers in a row

    def __post_init__(self) -> None:
        self._start(1.0)

    def _start(self, scale: float) -> None:
        self.theta = [scale * value for value in self.guess]
        size = len(self.guess)
        self.spread = [[0.0] * size for _ in range(size)]
        for i, value in enumerate(self.theta):
            self.spread[i][i] = (0.7 * value) ** 2

    def __call__(self, x: tuple[float, ...]) -> float:
        """The predicted y, never negative."""
        return max(0.0, sum(map(mul, self.theta, x)))

    def observe(self, x: tuple[float, ...], y: float, correction: float = 1.0) -> bool:
        """Learn that shape x cost y milliseconds; the prediction was corrected by the factor `correction`.

        False: y was taken for an outlier and ignored.
        """
        if self.count == 0:
            guessed = self(x)
            self._start(y / correction / guessed if guessed > 0.0 and y > 0.0 else 1.0)
            self.noise = NOISE * max(y, 1e-3)
        line = self(x)
        if self.count > RECENT and y > OUTLIER * correction * line and self.odd < OUTLIERS - 1:
            self.odd += 1
            return False
        self.odd = 0
        self.count += 1
        theta, spread = self.theta, self.spread
        size = range(len(theta))
        # Of spread plus its drift, which is DRIFT * theta theta' and a little more on the diagonal.
        gain = []
        for row, value, part in zip(spread, theta, x, strict=True):
            gain.append(correction * (sum(map(mul, row, x)) + DRIFT * value * (line + 1e-2 * value * part)))
        variance = correction * sum(map(mul, gain, x)) + self.noise**2
        bound = CLIP * math.sqrt(variance)
        error = max(-bound, min(bound, y - correction * line))
        for i in size:
            drift, factor, row = DRIFT * theta[i], gain[i] / variance, spread[i]
            for j in size:
                row[j] += drift * theta[j] - factor * gain[j]
            row[i] += 1e-2 * drift * theta[i]
        step = error / variance
        for i in size:
            theta[i] = max(theta[i] + gain[i] * step, 0.0)  # no part gets cheaper with more of it
        self.noise += 0.05 * (1.25 * min(abs(error), CLIP * self.noise) - self.noise)
        self.noise = max(self.noise, 1e-3 * abs(y), 1e-6)
        return True


@dataclass(slots=True)
class Shape:
    """How one verify shape deviates from the straight line."""

    recent: list[float]  # log of measured / line, newest last
    factor: float = field(init=False)

    def __post_init__(self) -> None:
        median, count = sorted(self.recent)[(len(self.recent) - 1) // 2], len(self.recent)
        self.factor = math.exp(median * count / (count + SHAPE_STRENGTH))


@dataclass(slots=True)
class CostModel:
    """Milliseconds of a round and of its parts."""

    verify: Line = field(default_factory=lambda: Line(VERIFY_GUESS))
    draft: Line = field(default_factory=lambda: Line(DRAFT_GUESS))
    catchup: Line = field(default_factory=lambda: Line(CATCHUP_GUESS))
    overhead: Line = field(default_factory=lambda: Line(OVERHEAD_GUESS))
    shapes: dict[int, dict[int, Shape]] = field(default_factory=dict)  # by batch size and guesses

    def verify_ms(self, batch: int, extra: int, context: float = 0.0) -> float:
        """The target's pass over `batch` requests of mean length `context` with `extra` guesses in all."""
        line = self.verify((1.0, float(batch), float(extra), float(extra > 0), batch * context, extra * context))
        return line * self._ratio(batch, extra)

    def verify_curve(self, batch: int, most: int, context: float = 0.0) -> list[float]:
        """`verify_ms` for 0..most guesses."""
        theta = self.verify.theta
        plain = theta[0] + (theta[1] + theta[4] * context) * batch
        row, first = theta[2] + theta[5] * context, plain + theta[3]
        curve = [first + row * extra for extra in range(most + 1)]
        curve[0] = plain
        return list(map(mul, curve, self._ratios(batch, most)))

    def row_ms(self, context: float = 0.0) -> float:
        """A further row of the target's pass."""
        return self.verify.theta[2] + self.verify.theta[5] * context

    def step_ms(self, rows: float, context: float = 0.0) -> float:
        """One draft forward for `rows` requests."""
        return self._scaled(self.draft, (1.0, rows, rows * context))

    def catchup_ms(self, tokens: float, context: float = 0.0) -> float:
        """The draft's first forward of a round, over `tokens` positions."""
        return self._scaled(self.catchup, (1.0, tokens, tokens * context))

    def overhead_ms(self, batch: int, drafting: bool) -> float:
        """What is spent outside the models."""
        return self._scaled(self.overhead, (1.0, float(batch), float(drafting)))

    def plain_ms(self, batch: int, context: float = 0.0) -> float:
        """A round without drafts."""
        return self.verify_ms(batch, 0, context) + self.overhead_ms(batch, drafting=False)

    def slower(self, batch: int, extra: int, context: float = 0.0) -> float:
        """How many times as long as a plain round one with `extra` guesses takes, drafting not counted."""
        whole = self.verify_ms(batch, extra, context) + self.overhead_ms(batch, drafting=True)
        return whole / self.plain_ms(batch, context)

    def observe(self, record: RoundRecord) -> None:
        """Learn from a round; one that reports no time is ignored."""
        batch, extra = record.batch, record.rows - record.batch
        if batch == 0 or record.verify_ms <= 0.0:
            return
        guessed = KILO * record.guess_context
        x = (1.0, float(batch), float(extra), float(extra > 0), KILO * record.context, guessed)
        ratio = self._ratio(batch, extra)
        if self.verify.observe(x, record.verify_ms, ratio):
            self._observe_shape(batch, extra, record.verify_ms / max(self.verify(x), 1e-9))
        mean = guessed / extra if extra else KILO * record.context / batch
        if record.draft_steps > 0:
            rows = max(record.draft_rows, record.draft_steps) / record.draft_steps
            self.draft.observe((1.0, rows, rows * mean), record.draft_ms / record.draft_steps)
        if record.catchup_tokens > 0:
            read = float(record.catchup_tokens)
            self.catchup.observe((1.0, read, read * mean), record.catchup_ms)
        rest = record.total_ms - record.verify_ms - record.draft_ms - record.catchup_ms
        self.overhead.observe((1.0, float(batch), float(extra > 0)), max(rest, 0.0))

    def to_dict(self) -> dict[str, Any]:
        """The fitted model, JSON-ready."""
        lines = {name: getattr(self, name) for name in ("verify", "draft", "catchup", "overhead")}
        return {
            "lines": {name: {"theta": line.theta, "noise": line.noise} for name, line in lines.items() if line.count},
            "shapes": [
                [batch, extra, *shape.recent]
                for batch, shapes in self.shapes.items()
                for extra, shape in shapes.items()
            ],
        }

    def load(self, values: dict[str, Any]) -> None:
        """Take over what `to_dict` wrote; raises Value-, Type-, Key- or AttributeError if it is not that."""
        for name, saved in values["lines"].items():
            if name not in ("verify", "draft", "catchup", "overhead"):
                raise KeyError(name)
            line: Line = getattr(self, name)
            theta, noise = [float(v) for v in saved["theta"]], float(saved["noise"])
            if len(theta) != len(line.guess) or not all(map(math.isfinite, [*theta, noise])) or noise <= 0.0:
                raise ValueError(f"{name} is not a fitted line")
            line.theta, line.noise, line.count = theta, noise, 1
            for i, value in enumerate(theta):  # another day, another load: half-trusted
                line.spread[i] = [(0.2 * value) ** 2 if i == j else 0.0 for j in range(len(theta))]
        for batch, extra, *recent in values["shapes"]:
            if int(extra) < 0 or not recent or not all(abs(float(value)) < 10.0 for value in recent):
                raise ValueError("shapes holds a row without ratios")
            shape = Shape([float(value) for value in recent[-3:]])
            self.shapes.setdefault(int(batch), {})[int(extra)] = shape

    def _scaled(self, line: Line, x: tuple[float, ...]) -> float:
        """`line`, or its guess in units of a plain token while it has seen nothing."""
        if line.count:
            return line(x)
        return line(x) * self.verify((1.0, 1.0, 0.0, 0.0, 0.0, 0.0))

    def _ratio(self, batch: int, extra: int) -> float:
        known = self.shapes.get(batch, {}).get(extra)
        return self._ratios(batch, extra)[extra] if known is None else known.factor

    def _ratios(self, batch: int, most: int) -> list[float]:
        """Of 0..most guesses at least: of shapes that were run, else what their neighbours at this batch size say."""
        shapes = sorted(self.shapes.get(batch, {}).items())
        if not shapes:
            return [1.0] * (most + 1)
        ratios = [shapes[0][1].factor] * min(shapes[0][0], most + 1)
        for (left, low), (right, high) in pairwise(shapes):
            ratios.append(low.factor)
            if right - left > 1:
                slope = (high.factor - low.factor) / (right - left)
                ratios += [low.factor + slope * step for step in range(1, min(right, most + 1) - left)]
        return ratios + [shapes[-1][1].factor] * (most + 1 - len(ratios))

    def _observe_shape(self, batch: int, extra: int, ratio: float) -> None:
        """Remember measured / straight line; the least recently run shapes and batch sizes are dropped."""
        shapes = self.shapes[batch] = self.shapes.pop(batch, {})
        known = shapes.pop(extra, None)
        recent = known.recent[1 - RECENT :] if known else []
        shapes[extra] = Shape([*recent, math.log(min(max(ratio, 1e-3), 1e3))])
        if len(shapes) > SHAPES:
            del shapes[next(iter(shapes))]
        if len(self.shapes) > SHAPES:
            del self.shapes[next(iter(self.shapes))]
