import math
from types import SimpleNamespace

import numpy as np
import pytest

from sgl_spec.control.base import RequestRound, RoundRecord
from sgl_spec.control.cost import RECENT, SHAPES, CostModel, Line, Shape


def round_of(batch, extra, verify, **values):
    outcomes = [RequestRound(str(i), extra // batch, 0) for i in range(batch)]
    total = verify + values.get("draft_ms", 0.0) + values.get("catchup_ms", 0.0) + 0.5
    return RoundRecord(outcomes, batch + extra, verify, total, **values)


def true_ms(batch, extra):
    return 14.0 + 4.0 * batch + 1.3 * extra + (0.8 if extra else 0.0)


def trained(noise=0.0, outliers=0.0, rounds=400, seed=0):
    rng = np.random.default_rng(seed)
    model = CostModel()
    for _ in range(rounds):
        batch = int(rng.integers(1, 9))
        extra = batch * int(rng.integers(0, 5))
        factor = 1.0 + noise * rng.normal()
        if rng.random() < outliers:
            factor *= 4.0
        model.observe(round_of(batch, extra, factor * true_ms(batch, extra)))
    return model


@pytest.mark.parametrize(("noise", "outliers", "tolerance"), [(0.0, 0.0, 0.01), (0.04, 0.0, 0.06), (0.04, 0.03, 0.08)])
def test_recovers_costs_also_of_unseen_shapes(noise, outliers, tolerance):
    model = trained(noise, outliers)
    for batch in (1, 4, 8):
        for extra in (0, batch, 3 * batch, 4 * batch - 1):
            assert model.verify_ms(batch, extra) == pytest.approx(true_ms(batch, extra), rel=tolerance)


def test_curve_equals_single_predictions():
    model = trained(0.05)
    curve = model.verify_curve(4, 12)
    assert curve == pytest.approx([model.verify_ms(4, extra) for extra in range(13)])


def test_a_step_in_the_kernel_is_learnt_per_shape():
    model = CostModel()
    steps = {0: 20.0, 1: 30.0, 2: 36.0, 3: 30.0, 4: 35.0}
    for _ in range(40):
        for extra, ms in steps.items():
            model.observe(round_of(1, extra, ms))
    for extra, ms in steps.items():
        assert model.verify_ms(1, extra) == pytest.approx(ms, rel=0.04)


def test_a_drift_of_the_machine_moves_shapes_that_are_not_run():
    model = trained()
    before = model.verify_ms(2, 0)
    for _ in range(300):
        model.observe(round_of(2, 6, 1.5 * true_ms(2, 6)))
    assert model.verify_ms(2, 6) == pytest.approx(1.5 * true_ms(2, 6), rel=0.03)
    assert model.verify_ms(2, 0) > 1.25 * before


def test_guesses_before_the_first_round_are_proportions():
    model = CostModel()
    model.observe(round_of(1, 0, 40.0))
    assert model.plain_ms(1) == pytest.approx(40.5, rel=0.02)
    assert 1.0 < model.verify_ms(1, 1) / model.verify_ms(1, 0) < 1.25
    assert 2.0 < model.step_ms(1) < 8.0


def test_draft_parts_are_separate():
    model = CostModel()
    for rows in (1, 2, 4, 8) * 30:
        model.observe(
            round_of(
                rows, 3 * rows, 20.0, draft_ms=2 * (1.0 + 0.2 * rows), draft_steps=2, draft_rows=2 * rows,
                catchup_ms=1.5 + 0.3 * 2 * rows, catchup_tokens=2 * rows,
            )
        )  # fmt: skip
    assert model.step_ms(4) == pytest.approx(1.8, rel=0.05)
    assert model.catchup_ms(8) == pytest.approx(3.9, rel=0.05)
    assert model.overhead_ms(4, drafting=True) == pytest.approx(0.5, rel=0.1)


def test_rounds_without_times_are_ignored():
    model = CostModel()
    model.observe(round_of(1, 0, 0.0))
    model.observe(RoundRecord([], 0, 5.0, 5.0))
    assert model.verify.count == 0
    model.observe(round_of(1, 0, 0.4))  # a fast device
    assert model.verify_ms(1, 0) == pytest.approx(0.4)


def test_save_and_load():
    model = trained(0.03)
    other = CostModel()
    other.load(model.to_dict())
    for batch, extra in ((1, 0), (1, 4), (8, 16), (3, 2)):
        assert other.verify_ms(batch, extra) == pytest.approx(model.verify_ms(batch, extra), rel=0.05)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d["lines"]["verify"].update(theta=[1.0]),
        lambda d: d["lines"]["verify"].update(theta=[math.nan] * 4),
        lambda d: d["lines"]["verify"].update(noise=0.0),
        lambda d: d["lines"].update(more={"theta": [1.0], "noise": 1.0}),
        lambda d: d.pop("shapes"),
        lambda d: d["shapes"].append([1, 2, math.inf, 3.0]),
        lambda d: d["shapes"].append([1, 2]),
        lambda d: d["shapes"].append([1, 2, 10.0]),
        lambda d: d["shapes"].append([1, -1, 0.1]),
        lambda d: d.update(lines=3),
    ],
)
def test_damaged_documents_raise(damage):
    document = trained().to_dict()
    damage(document)
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        CostModel().load(document)


def test_memory_is_bounded():
    model = CostModel()
    for extra in range(3 * SHAPES):
        model.observe(round_of(1, extra, 20.0 + extra))
    assert len(model.shapes[1]) == SHAPES
    for batch in range(1, 2 * SHAPES):
        model.observe(round_of(batch, 0, 20.0 + batch))
    assert len(model.shapes) <= SHAPES
    assert all(len(shapes) <= SHAPES for shapes in model.shapes.values())
    assert len(model.shapes) == SHAPES


def test_a_line_never_predicts_less_than_nothing():
    line = Line((1.0, 1.0))
    for x in (1.0, 2.0, 3.0) * 20:
        line.observe((1.0, x), 10.0 / x)
    assert line((1.0, 100.0)) >= 0.0
    assert min(line.theta) >= 0.0


@pytest.mark.parametrize("lengths", [(300, 2500), (2500, 300, 1200)])
def test_the_context_of_rows_is_learnt_from_requests_of_different_length(lengths):
    """Plain 31.5 + 6.2 ms, a guess 2.2 + 1.5 ms, a draft forward 2.4 + 0.6 ms, each per thousand tokens of context."""
    model = CostModel()
    for at in range(240):
        length, extra = lengths[at // 24 % len(lengths)], (0, 1, 3, 5)[at % 4]
        kilo = length / 1000
        verify, draft = 31.5 + 6.2 * kilo + (2.2 + 1.5 * kilo) * extra, (2.4 + 0.6 * kilo) * max(extra - 1, 0)
        times = {"draft_ms": draft, "draft_steps": max(extra - 1, 0), "draft_rows": max(extra - 1, 0)}
        if extra:
            times |= {"catchup_ms": 3.0 + 0.8 * kilo, "catchup_tokens": 2}
        model.observe(round_of(1, extra, verify, context=length, guess_context=extra * length, **times))
    for kilo in (0.3, 1.0, 2.5):
        assert model.verify_ms(1, 0, kilo) == pytest.approx(31.5 + 6.2 * kilo, rel=0.03)
        assert model.row_ms(kilo) == pytest.approx(2.2 + 1.5 * kilo, rel=0.1)
        assert model.step_ms(1.0, kilo) == pytest.approx(2.4 + 0.6 * kilo, rel=0.05)
        assert model.catchup_ms(2.0, kilo) == pytest.approx(3.0 + 0.8 * kilo, rel=0.1)
        curve = model.verify_curve(1, 5, kilo)
        assert curve == pytest.approx([model.verify_ms(1, extra, kilo) for extra in range(6)])


def test_an_outlier_among_the_plain_rounds_is_outvoted():
    cost = CostModel()
    for ms in (30.0, 95.0, 30.0):
        cost.observe(round_of(1, 0, ms))
    assert cost.plain_ms(1) < 45.0


def test_parts_never_measured_are_fractions_of_a_plain_token():
    model = CostModel()
    model.verify.theta = [30.0, 10.0, 5.0, 7.0, 3.0, 2.0]  # forty milliseconds a plain token
    assert model.step_ms(3.0) == pytest.approx(40.0 * 0.13)
    assert model.step_ms(1.0, 2.0) == pytest.approx(40.0 * 0.13)
    assert model.catchup_ms(4.0) == pytest.approx(40.0 * 0.15)
    assert model.overhead_ms(2, drafting=True) == pytest.approx(40.0 * 0.05)
    assert (model.row_ms(), model.row_ms(2.0)) == (5.0, 9.0)


def test_a_shape_remembers_its_newest_ratios_and_no_absurd_one():
    model = CostModel()
    for ms in range(10, 10 + 2 * RECENT):
        model.observe(round_of(1, 0, float(ms)))
    assert len(model.shapes[1][0].recent) == RECENT
    model._observe_shape(1, 1, 1e9)
    model._observe_shape(1, 2, 0.0)
    assert (model.shapes[1][1].recent, model.shapes[1][2].recent) == ([math.log(1e3)], [math.log(1e-3)])


def test_the_least_a_draft_can_do_is_learnt():
    """One catch-up of one token, one step of one row, one guess."""
    model = CostModel()
    model.observe(round_of(1, 1, 20.0, draft_ms=3.0, draft_steps=1, draft_rows=1, catchup_ms=2.0, catchup_tokens=1))
    assert model.step_ms(1.0) == pytest.approx(3.0)
    assert model.catchup_ms(1.0) == pytest.approx(2.0)
    assert model.overhead_ms(1, drafting=True) == pytest.approx(0.5)
    assert model.overhead_ms(1, drafting=False) == pytest.approx(0.5 * 0.025 / 0.045)


def test_a_drafts_context_is_that_of_the_requests_that_draft():
    """Requests of 1,000 and 5,000 tokens; three guesses of the longer one. Without guesses, the mean of all."""
    learnt = []
    model = CostModel()
    for name in ("draft", "catchup"):
        setattr(model, name, SimpleNamespace(observe=lambda x, ms, name=name: learnt.append((name, x, ms))))
    drafts = {"draft_ms": 4.0, "draft_steps": 2, "draft_rows": 2, "catchup_ms": 3.0, "catchup_tokens": 4}
    requests = [RequestRound("short", 0, 0), RequestRound("long", 3, 0)]
    model.observe(RoundRecord(requests, 5, 20.0, 30.0, context=6000, guess_context=15000, **drafts))
    assert learnt == [("draft", (1.0, 1.0, 5.0), 2.0), ("catchup", (1.0, 4.0, 20.0), 3.0)]
    learnt.clear()
    requests = [RequestRound("short", 0, 0), RequestRound("long", 0, 0)]
    model.observe(RoundRecord(requests, 2, 20.0, 30.0, context=6000, catchup_ms=3.0, catchup_tokens=2))
    assert learnt == [("catchup", (1.0, 2.0, 6.0), 3.0)]


def test_a_shape_that_was_never_run_is_priced_like_its_neighbours():
    """One request teaches the line; sixteen at once pay twice as much for guesses, which no line of both can say."""
    model = CostModel()
    for _ in range(60):
        for extra in (0, 2, 4):
            model.observe(round_of(1, extra, 30.0 + extra))
            model.observe(round_of(16, 0, 60.0))
    before = model.verify_ms(16, 30)
    for _ in range(9):
        model.observe(round_of(16, 10, 120.0))
    assert model.verify_ms(16, 10) == pytest.approx(120.0, rel=0.05)
    line = model.verify((1.0, 16.0, 30.0, 1.0, 0.0, 0.0))
    assert model.verify_ms(16, 30) == pytest.approx(line * model.shapes[16][10].factor)
    assert model.verify_ms(16, 30) > before
    halfway = (model.shapes[16][0].factor + model.shapes[16][10].factor) / 2
    assert model.verify_ms(16, 5) == pytest.approx(model.verify((1.0, 16.0, 5.0, 1.0, 0.0, 0.0)) * halfway)
    assert model.verify_curve(16, 30) == pytest.approx([model.verify_ms(16, extra) for extra in range(31)])
    assert model.verify_ms(3, 5) == pytest.approx(model.verify((1.0, 3.0, 5.0, 1.0, 0.0, 0.0)))  # no neighbours


def test_a_shape_far_beyond_those_asked_for_is_no_reason_to_fill_the_gap():
    model = CostModel()
    model.shapes[1] = {10**12: Shape([0.8]), 2: Shape([0.0]), 10**12 - 4: Shape([0.4])}
    assert model.verify_curve(1, 4) == pytest.approx([model.verify_ms(1, extra) for extra in range(5)])
    assert model.verify_ms(1, 4) == pytest.approx(model.verify((1.0, 1.0, 4.0, 1.0, 0.0, 0.0)))
    model.shapes[2] = {10**12: Shape([0.8])}
    assert model.verify_ms(2, 4) == pytest.approx(model.verify((1.0, 2.0, 4.0, 1.0, 0.0, 0.0)) * math.exp(0.4))


def test_what_drafting_adds_outside_the_models_is_learnt_apart_from_plain_rounds():
    model = CostModel()
    for _ in range(100):
        for extra, rest in ((0, 1.5), (2, 2.1)):
            record = round_of(1, extra, true_ms(1, extra))
            model.observe(RoundRecord(record.requests, 1 + extra, record.verify_ms, record.verify_ms + rest))
    assert model.overhead_ms(1, drafting=False) == pytest.approx(1.5, rel=0.1)
    assert model.overhead_ms(1, drafting=True) == pytest.approx(2.1, rel=0.1)


def test_how_much_slower_guesses_make_a_round():
    cost = CostModel()
    cost.verify.theta = [20.0, 5.0, 2.0, 1.0, 3.0, 0.5]
    cost.overhead.theta, cost.overhead.count = [1.0, 0.1, 0.5], 1
    assert cost.slower(4, 6) == pytest.approx((20 + 20 + 12 + 1 + 1.9) / (20 + 20 + 1.4))
    assert cost.slower(4, 6, 2.0) == pytest.approx((53 + 24 + 6 + 1.9) / (40 + 24 + 1.4))
