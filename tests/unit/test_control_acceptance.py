"""Evidence at its edges: what is nearly certain, and guesses beyond the last position."""

import pytest

from sgl_spec.control.acceptance import Acceptance, Evidence, Level, Table
from tests.unit.test_control_reference import estimate


def test_neither_a_scaled_prior_nor_an_estimate_is_a_certainty():
    """Three times as many hits as the level above foresaw, and a position at which all was right."""
    table = Table(3, Level(1.0, 3.0, 1.0))
    row = table.row("a")
    table.learn(row, [8.0, 7.0, 9000.0], [10.0, 8.0, 9000.0], [0.3, 0.3, 0.3], 1)
    a = table.estimate(row, [0.9, 0.0, 0.9])
    assert a == pytest.approx([(8.0 + 3.0 * 0.995) / 13.0, 7.0 / 11.0, 0.995])
    assert a == pytest.approx(estimate(row.hits, row.trials, row.expected, [0.9, 0.0, 0.9], table.level))


def test_guesses_beyond_the_last_position_are_not_counted():
    wide, narrow, key = Acceptance(5), Acceptance(2), ("p", 0)
    for model in (wide, narrow):
        model.of(["r"], [key])
        model.learn([Evidence("r", key, 5, 5, 5, 4), Evidence("r", key, 3, 2, 2, 2), Evidence("r", key, 5, 1, 1, 0)], 3)
    for name in ("all", "programs", "requests", "reach"):
        [mine], [theirs] = getattr(narrow, name).rows.values(), getattr(wide, name).rows.values()
        assert (mine.hits, mine.trials) == (theirs.hits[:2], theirs.trials[:2])
    assert (wide.all.row("").hits, wide.all.row("").trials) == ([2.0, 2.0, 1.0, 1.0, 0.0], [3.0, 2.0, 1.0, 1.0, 1.0])
    assert (wide.reach.row(key).hits, wide.reach.row(key).trials) == (
        [3.0, 2.0, 1.0, 1.0, 1.0],
        [3.0, 3.0, 2.0, 1.0, 1.0],
    )


def test_requests_of_a_program_are_judged_each_by_itself_and_together():
    """Two requests of one program and one of another; one that was never asked about teaches its program alone."""
    model, one, two = Acceptance(3), ("one", 0), ("two", 0)
    model.of(["a", "b"], [one, two])
    evidence = [("a", one, 2), ("b", two, 0), ("gone", one, 1), ("a", one, 3)]
    model.learn([Evidence(rid, key, 3, 3, 3, accepted) for rid, key, accepted in evidence])
    assert {rid: row.hits for rid, row in model.requests.rows.items()} == {"a": [2.0, 2.0, 1.0], "b": [0.0] * 3}
    assert {key: row.hits for key, row in model.programs.rows.items()} == {one: [3.0, 2.0, 1.0], two: [0.0] * 3}
    assert model.requests.row("a").trials == [2.0] * 3
    assert model.programs.row(one).trials == [3.0] * 3
    assert model.all.row("").trials == [4.0] * 3
