"""Costs, acceptance and prices against plain second computations: matrices and loops."""

import itertools
import math

import numpy as np
import pytest

from sgl_spec.control.acceptance import (
    COLD,
    COLD_DEEPER,
    GOES_DEEPER,
    GOES_ON,
    PROGRAM,
    REQUEST,
    Acceptance,
    Evidence,
    Level,
    Table,
    band,
)
from sgl_spec.control.base import RequestRound, RoundRecord
from sgl_spec.control.cost import CLIP, DRIFT, NOISE, OUTLIER, OUTLIERS, RECENT, CostModel, Line, Shape
from sgl_spec.control.plan import Prices, Slots, best

FRESH, GOING = [COLD, *[COLD_DEEPER] * 3], [GOES_ON, *[GOES_DEEPER] * 3]  # before anything was seen


class Kalman:
    """`cost.Line` in matrices."""

    def __init__(self, guess):
        self.guess, self.noise, self.count, self.odd = np.array(guess), 0.0, 0, 0

    def start(self, scale):
        self.theta = scale * self.guess
        self.p = np.diag((0.7 * self.theta) ** 2)

    def observe(self, x, y, c):
        x = np.array(x)
        if self.count == 0:
            self.start(y / c / (self.guess @ x))
            self.noise = NOISE * y
        if self.count > RECENT and y > OUTLIER * c * (self.theta @ x) and self.odd < OUTLIERS - 1:
            self.odd += 1
            return False
        self.odd, self.count = 0, self.count + 1
        self.p = self.p + DRIFT * np.outer(self.theta, self.theta) + np.diag(1e-2 * DRIFT * self.theta**2)
        h = c * x
        s = h @ self.p @ h + self.noise**2
        error = float(np.clip(y - h @ self.theta, -CLIP * math.sqrt(s), CLIP * math.sqrt(s)))
        gain = self.p @ h
        self.theta = np.maximum(self.theta + gain * error / s, 0.0)
        self.p = self.p - np.outer(gain, gain) / s
        self.noise += 0.05 * (1.25 * min(abs(error), CLIP * self.noise) - self.noise)
        self.noise = max(self.noise, 1e-3 * y, 1e-6)
        return True


@pytest.mark.parametrize("seed", range(4))
def test_a_line_is_this_kalman_filter(seed):
    rng = np.random.default_rng(seed)
    line, reference = Line((0.75, 0.25, 0.08)), Kalman((0.75, 0.25, 0.08))
    for n in range(150):
        x = (1.0, float(rng.integers(1, 5)), float(rng.integers(0, 9)))
        y = float((12 + 4 * x[1] + 0.9 * x[2]) * (1 + 0.1 * rng.normal()) * (3.0 if n % 23 > 20 else 1.0))
        c = float(rng.choice([1.0, 0.9, 1.2]))
        assert line.observe(x, y, c) == reference.observe(x, y, c), n
        assert line.theta == pytest.approx(reference.theta.tolist(), rel=1e-6, abs=1e-9), n
        assert np.allclose(line.spread, reference.p, rtol=1e-6, atol=1e-9), n
        assert (line.noise, line.odd, line.count) == (pytest.approx(reference.noise), reference.odd, reference.count)


def test_a_first_cost_of_nothing_starts_from_the_guess():
    line = Line((1.0, 2.0))
    assert line((3.0, 1.0)) == 5.0
    assert line.observe((1.0, 1.0), 0.0)
    assert line.count == 1
    assert line.noise == pytest.approx(5e-5 + 0.05 * (1.25 * 1.5e-4 - 5e-5))
    theta, p, h = np.array([1.0, 2.0]), np.diag([0.49, 1.96]), np.ones(2)
    p += DRIFT * np.outer(theta, theta) + np.diag(1e-2 * DRIFT * theta**2)
    s = h @ p @ h + 5e-5**2
    step = min(3.0, CLIP * math.sqrt(s)) / s
    assert line.theta == pytest.approx(np.maximum(theta - p @ h * step, 0.0).tolist())
    line.theta = [-2.0, 1.0]
    assert line((1.0, 1.0)) == 0.0


def test_a_guess_of_nothing_stays_a_guess():
    line = Line((0.0, 1.0))
    assert line.observe((1.0, 0.0), 4.0)
    assert line.theta == [0.0, 1.0]  # what costs nothing by the guess cannot be scaled


def test_outliers_count_from_the_tenth_round_on_and_three_in_a_row_are_no_outliers():
    line = Line((1.0,))
    assert all(line.observe((1.0,), 10.0) for _ in range(RECENT))
    assert line.observe((1.0,), 100.0)
    for _ in range(30):
        line.observe((1.0,), 10.0)
    before = list(line.theta)
    assert [line.observe((1.0,), 20.0) for _ in range(OUTLIERS - 1)] == [False] * (OUTLIERS - 1)
    assert line.theta == before
    assert line.observe((1.0,), 20.0)
    assert line.odd == 0
    assert line.theta[0] > before[0]


@pytest.mark.parametrize(("ms", "floor"), [(10.0, 1e-2), (0.0, 1e-6)])
def test_the_noise_has_a_floor(ms, floor):
    """A thousandth of what was measured, and never nothing: a certain line would not move any more."""
    line = Line((1.0,))
    for _ in range(400):
        line.observe((1.0,), ms)
    assert line.noise == pytest.approx(floor, rel=0.3)
    assert line.noise >= floor


def test_a_shapes_factor_is_its_median_drawn_to_one():
    assert Shape([0.3]).factor == pytest.approx(math.exp(0.3 / 2))
    assert Shape([0.9, 0.1, 0.2]).factor == pytest.approx(math.exp(0.2 * 3 / 4))
    assert Shape([0.2, 0.1]).factor == pytest.approx(math.exp(0.1 * 2 / 3))  # of two the smaller


def round_of(batch, extra, verify, total, **values):
    return RoundRecord([RequestRound(str(i), 0, 0) for i in range(batch)], batch + extra, verify, total, **values)


def test_parts_of_a_round_go_to_their_lines():
    model = CostModel()
    model.observe(
        round_of(2, 3, 20.0, 35.0, draft_ms=6.0, draft_steps=3, draft_rows=6, catchup_ms=5.0, catchup_tokens=4)
    )
    assert model.verify((1.0, 2.0, 3.0, 1.0, 0.0, 0.0)) == pytest.approx(20.0)
    assert model.draft((1.0, 2.0, 0.0)) == pytest.approx(2.0)
    assert model.catchup((1.0, 4.0, 0.0)) == pytest.approx(5.0)
    assert model.overhead((1.0, 2.0, 1.0)) == pytest.approx(4.0)
    assert model.shapes[2][3].recent == pytest.approx([0.0], abs=1e-9)
    model.observe(round_of(1, 0, 10.0, 9.0))  # clocks of another process: no part is negative
    assert (model.draft.count, model.catchup.count, model.overhead.count) == (1, 1, 2)
    model.observe(round_of(3, 1, 10.0, 11.0, draft_ms=2.0, draft_steps=2, draft_rows=1))
    assert model.draft.count == 2  # fewer rows than steps: one each
    assert model.plain_ms(2) == pytest.approx(model.verify_ms(2, 0) + model.overhead_ms(2, drafting=False))
    assert model.overhead_ms(2, drafting=True) > model.overhead_ms(2, drafting=False)


def estimate(hits, trials, expected, prior, level):
    ratio = (sum(hits) + level.ratio_strength) / (expected + level.ratio_strength)
    out = []
    for h, t, a in zip(hits, trials, prior, strict=True):
        scaled = min(a * ratio, 0.995)
        out.append(min((h + level.strength * scaled) / (t + level.strength), 0.995))
    return out


def test_acceptance_by_hand():
    """One round of evidence: request over program over everything, each the prior of the next."""
    model, key = Acceptance(4), ("code", 0)
    a, going = model.of(["r"], [key])
    assert a == [pytest.approx(FRESH)]
    assert going == [pytest.approx(GOING)]
    model.learn([Evidence("r", key, 4, 3, 3, 2)])
    hits, tried = [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]
    everything = estimate(hits, tried, sum(FRESH[:3]), FRESH, Level(0.9995, 3.0, 1.0))
    # What the levels below learnt was weighed against what those above said before.
    program = estimate(hits, tried, sum(FRESH[:3]), everything, PROGRAM)
    request = estimate(hits, tried, sum(FRESH[:3]), program, REQUEST)
    a, going = model.of(["r"], [key])
    assert a[0] == pytest.approx(request)
    made, decided = [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]
    assert going[0] == pytest.approx(estimate(made, decided, sum(GOING), GOING, PROGRAM))
    assert model.asked(key) == 1.0
    assert model.asked(("other", 0)) == 0.0
    other, _ = model.of(["s"], [("other", 0)])
    assert other[0] == pytest.approx(everything)
    model.learn([Evidence("s", ("shy", 0), 2, 0, 0, 0)])  # asked for two, the draft was too unsure for one
    assert (model.programs.seen(("shy", 0)), model.asked(("shy", 0))) == ((0.0, 0.0), 1.0)


def test_evidence_fades_by_rounds_and_depth_counts_what_is_left():
    table = Table(3, Level(0.5, 1.0, 1.0))
    row, prior = table.row("a"), [0.5] * 3
    assert table.row("a") is row
    table.learn(row, [4.0, 2.0, 0.0], [8.0, 4.0, 2.0], prior, 1)
    assert (table.seen("a"), table.depth("a"), row.expected) == ((4.0, 8.0), 3, 7.0)
    table.learn(row, [0.0] * 3, [0.0] * 3, prior, 2)
    assert (table.seen("a"), table.depth("a"), row.expected) == ((1.0, 2.0), 1, 1.75)
    assert (row.hits, row.trials) == ([1.0, 0.5, 0.0], [2.0, 1.0, 0.5])
    assert (table.seen("b"), table.depth("b")) == ((0.0, 0.0), 0)
    table.drop("b")
    table.drop("a")
    assert table.rows == {}
    fresh = table.row("a")
    assert (table.seen("a"), fresh.hits, fresh.trials, fresh.expected) == ((0.0, 0.0), [0.0] * 3, [0.0] * 3, 0.0)
    others = [table.row(key) for key in "de"]
    table.drop("a")
    assert not any(table.row("f") is other for other in others)  # not the row of another
    assert list(table.rows) == ["d", "e", "f"]


def test_tables_grow_and_bounded_ones_forget_the_least_recent():
    table = Table(2, PROGRAM)
    rows = [table.row(n) for n in range(20)]
    assert list(table.rows.values()) == rows
    assert len({id(part) for row in rows for part in (row.hits, row.trials)}) == 40  # no two share a list
    assert all(len(row.hits) == len(row.trials) == 2 for row in rows)
    small = Table(2, PROGRAM, most=2)
    small.row("a"), small.row("b"), small.row("a"), small.row("c")
    assert list(small.rows) == ["a", "c"]


def test_known_positions_are_twice_those_judged_and_two():
    model, key = Acceptance(8), ("p", 0)
    assert model.known(key) == 2
    for _ in range(3):
        model.learn([Evidence("r", key, 3, 3, 3, 3)])
    assert model.known(key) == model.known(("new", 0)) == 8
    model.forget("r")
    model.learn([Evidence("r", key, 1, 1, 1, 1)])  # the request ended: its program learns, no row is made
    assert model.requests.rows == {}


def test_bands():
    assert [band(t) for t in (0.0, 0.01, 0.5, 0.51, 0.85, 0.86, 1.15, 1.2)] == [0, 1, 1, 2, 2, 3, 3, 4]


def model_with_costs():
    model = CostModel()
    for _ in range(3):
        for batch, extra, kilo in itertools.product((1, 2), (0, 2, 4), (0.2, 2.0)):
            draft_ms = 4.5 + (1.5 + 0.5 * kilo) * batch
            drafts = {"draft_ms": draft_ms, "draft_steps": 3, "draft_rows": 3 * batch}
            reads = {"catchup_ms": 1.0 + (0.2 + 0.1 * kilo) * batch, "catchup_tokens": batch}
            length = {"context": round(1000 * kilo * batch), "guess_context": round(1000 * kilo * extra)}
            verify = 20.0 + 4.0 * kilo * batch + (1.0 + kilo) * extra
            model.observe(round_of(batch, extra, verify, verify + 6.0 + extra, **drafts, **reads, **length))
    return model


def price(model, slots, chosen):
    """Tokens (batch x geometric mean) and milliseconds of an allocation, slot by slot."""
    batch = len(slots.survival)
    mean = sum(slots.context) / batch
    rows = own = 0.0
    tokens = batch * math.prod(1 + sum(slots.survival[i][:k]) for i, k in enumerate(chosen)) ** (1 / batch)
    paid = {}
    for i, k in enumerate(chosen):
        for j in range(k):
            rows += slots.reach[i][j]
            own += slots.reach[i][j] * (model.row_ms(slots.context[i]) - model.row_ms(mean))
            runs = 1.0 if j == 0 else slots.reach[i][j]
            turn = j - slots.free[i]
            if turn < 0:
                continue
            paid[turn] = max(paid.get(turn, 0.0), runs)
            if turn == 0:
                own += (model.catchup_ms(1.0, mean) - model.catchup_ms(0.0)) * (slots.pending[i] + slots.free[i])
            else:
                own += (model.step_ms(1.0, mean) - model.step_ms(0.0)) * runs
    if rows == 0:
        return tokens, model.plain_ms(batch, mean)
    fixed = sum(r * (model.catchup_ms(0.0) if t == 0 else model.step_ms(0.0)) for t, r in paid.items())
    low = math.floor(rows)
    here, above = model.verify_ms(batch, low, mean), model.verify_ms(batch, low + 1, mean)
    verify = here + (rows - low) * (above - here)
    return tokens, verify + own + fixed + model.overhead_ms(batch, drafting=True)


def random_slots(rng, batch, positions, *, early_stop):
    survival = rng.uniform(0.1, 0.95, (batch, positions)).cumprod(axis=1)
    reach = rng.uniform(0.8, 1.0, (batch, positions)).cumprod(axis=1) if early_stop else np.ones((batch, positions))
    free, texts, context = rng.integers(0, 3, batch), rng.integers(1, 4, (2, batch)), rng.uniform(0.1, 3.0, batch)
    return Slots((survival * reach).tolist(), reach.tolist(), free.tolist(), *texts.tolist(), context.tolist())


@pytest.mark.parametrize("early_stop", [False, True])
def test_prices_slot_by_slot_and_the_best_of_all_allocations(early_stop):
    rng, model = np.random.default_rng(3), model_with_costs()
    lost = []
    for _ in range(25):
        slots = random_slots(rng, 2, 3, early_stop=early_stop)
        prices = Prices(model, slots)
        rates = {}
        for chosen in itertools.product(range(4), repeat=2):
            tokens, ms = price(model, slots, chosen)
            value = prices.worth(chosen)
            assert (value.tokens, value.ms) == (pytest.approx(tokens), pytest.approx(ms)), chosen
            rates[chosen] = tokens / ms
        found, value = best(prices)
        assert value.rate == pytest.approx(rates[tuple(found)], rel=1e-9 if not early_stop else 0.05)
        lost.append(max(rates.values()) / rates[tuple(found)] - 1)
    assert max(lost) < 0.06
    assert np.mean(lost) < 0.01
