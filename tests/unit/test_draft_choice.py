"""Levels that do not pay are dropped, come back when they do; the best drafter is found per key."""

from __future__ import annotations

import pytest

from sgl_spec.draft.choice import MAX_KEYS, LevelChoice, emitted, per_token


def watched(choice: LevelChoice, overlaps: dict[tuple[int, int], float], rounds: int = 100) -> tuple[int, ...]:
    for _ in range(rounds):
        for (lower, upper), value in overlaps.items():
            choice.observe_overlap("", lower, upper, value)
    return choice.choose("")


def test_tokens_per_pass() -> None:
    assert emitted(0.0, 5) == 1.0
    assert emitted(1.0, 5) == 6.0
    assert emitted(0.5, 2) == pytest.approx(1 + 0.5 + 0.25)


def test_the_width_grows_with_the_overlap() -> None:
    assert per_token(1.0, 0.0, 10.0) == (11.0, 1)
    rate, width = per_token(1.0, 0.5, 10.0)
    best, wide = per_token(1.0, 0.9, 10.0)
    assert best < rate < 10.0
    assert wide > width


def test_good_levels_stay() -> None:
    choice = LevelChoice([0.2, 2.0, 20.0])
    assert watched(choice, {(0, 1): 0.8, (1, 2): 0.8}) == (0, 1)
    rate, widths = choice.plan("", (0, 1))
    assert len(widths) == 2
    assert rate < choice.plan("", (1,))[0] < 20.0


@pytest.mark.parametrize(
    ("overlaps", "costs", "left"),
    [
        ({(0, 1): 0.02, (1, 2): 0.8}, [0.5, 2.0, 20.0], (1,)),  # the tiny one guesses badly
        ({(0, 1): 0.8, (1, 2): 0.3, (0, 2): 0.3}, [0.2, 15.0, 20.0], (0,)),  # the small one is too dear
        ({(0, 1): 0.05, (1, 2): 0.05, (0, 2): 0.05}, [5.0, 10.0, 20.0], (0,)),  # none pays: the least loss
    ],
)
def test_levels_that_do_not_pay_are_dropped(
    overlaps: dict[tuple[int, int], float], costs: list[float], left: tuple[int, ...]
) -> None:
    assert watched(LevelChoice(costs), overlaps) == left


def test_a_dropped_level_returns_when_it_pays() -> None:
    choice = LevelChoice([1.0, 5.0, 20.0])
    assert watched(choice, {(0, 1): 0.0, (1, 2): 0.8, (0, 2): 0.0}) == (1,)
    assert watched(choice, {(0, 1): 0.9, (1, 2): 0.9, (0, 2): 0.8}) == (0, 1)


def test_costs_are_learned() -> None:
    choice = LevelChoice([1.0, 5.0, 20.0])
    assert watched(choice, {(0, 2): 0.6, (1, 2): 0.6, (0, 1): 0.2}) == (0,)
    for _ in range(300):
        choice.observe_cost(0, 30.0)
    assert choice.choose("") == (1,)


def test_small_gains_do_not_change_the_choice() -> None:
    choice = LevelChoice([1.0, 1.0, 20.0])
    watched(choice, {(0, 1): 0.0, (0, 2): 0.5, (1, 2): 0.5})
    changes, before = 0, choice.choose("")
    for i in range(200):
        choice.observe_overlap("", 0, 2, 0.51 if i % 20 < 10 else 0.49)
        choice.observe_overlap("", 1, 2, 0.49 if i % 20 < 10 else 0.51)
        changes += choice.choose("") != before
        before = choice.choose("")
    assert changes <= 1


def test_unseen_overlaps_go_through_the_levels_between() -> None:
    choice = LevelChoice([1.0, 1.0, 1.0])
    for _ in range(500):
        choice.observe_overlap("", 0, 1, 0.5)
        choice.observe_overlap("", 1, 2, 0.8)
    assert choice.overlap("", 0, 2) == pytest.approx(0.4, abs=0.01)


def test_the_best_drafter_is_found_per_key() -> None:
    choice = LevelChoice([1.0, 1.0, 20.0])
    for _ in range(50):
        for key, overlaps in (("program a", (0.8, 0.1)), ("program b", (0.1, 0.8))):
            choice.observe_overlap(key, 0, 2, overlaps[0])
            choice.observe_overlap(key, 1, 2, overlaps[1])
            choice.observe_overlap(key, 0, 1, 0.1)
    assert choice.choose("program a") == (0,)
    assert choice.choose("program b") == (1,)
    assert choice.snapshot()["keys"]["program b"]["active"] == [1]


def test_a_dearer_drafter_must_earn_its_cost() -> None:
    choice = LevelChoice([0.5, 4.0, 20.0])
    assert watched(choice, {(0, 2): 0.60, (1, 2): 0.65, (0, 1): 0.0}) == (0,)
    assert watched(choice, {(0, 2): 0.30, (1, 2): 0.90, (0, 1): 0.0}) == (1,)


def test_keys_are_bounded() -> None:
    choice = LevelChoice([1.0, 20.0])
    for i in range(MAX_KEYS + 5):
        choice.choose(str(i))
    assert len(choice.snapshot()["keys"]) == MAX_KEYS
