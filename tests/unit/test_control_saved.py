"""What the default controller keeps over a restart: acceptance, costs, and what is refused."""

import json
import math

import numpy as np
import pytest

from sgl_spec.config import SpecConfig
from sgl_spec.control import load_state, make_controller, save_state, state_file
from sgl_spec.control.acceptance import COLD, COLD_DEEPER, PROGRAM, Acceptance, Evidence
from sgl_spec.control.base import RequestRound, RoundRecord
from sgl_spec.control.cost import CostModel, Shape
from sgl_spec.errors import ConfigError

FRESH = [COLD, *[COLD_DEEPER] * 3]  # before anything was seen


def test_what_is_kept_of_acceptance_over_a_restart():
    model, key, unseen = Acceptance(4), ("code", 2), ("new", 0)
    model.learn([Evidence("r", key, 4, 4, 3, 2), Evidence("s", key, 4, 4, 1, 0)])
    document = model.to_dict()
    hits, trials = [1.0, 1.0], [2.0, 1.0, 1.0]
    assert document["all"] == {
        "hits": [*hits, 0.0],
        "trials": trials,
        "expected": round(2 * FRESH[0] + FRESH[1] + FRESH[2], 4),
    }
    [saved] = document["programs"]
    assert (saved["program"], saved["band"], saved["hits"], saved["trials"]) == ("code", 2, [*hits, 0.0], trials)
    other = Acceptance(4)
    other.of(["x"], [key])
    other.load(document)
    for one in (key, unseen):
        assert other.of(["x"], [one])[0][0] == pytest.approx(model.of(["x"], [one])[0][0], abs=1e-4)
    assert other.to_dict()["programs"][0] == saved
    narrow = Acceptance(2)
    narrow.load(document)
    assert narrow.programs.row(key).trials == trials[:2]
    assert other.asked(key) == 2.0  # how often drafts went on is not kept, what was judged is
    empty = Acceptance(4)
    empty.load(Acceptance(4).to_dict())
    assert empty.of(["x"], [key])[0] == [pytest.approx(FRESH)]


@pytest.mark.parametrize(
    "damage",
    [
        {"hits": [1.0]},
        {"hits": [[1.0, 1.0]], "trials": [[1.0, 1.0]]},
        {"hits": [-0.1, 0.0]},
        {"hits": [1.1, 0.0]},
        {"trials": [1.0, 1e9]},
        {"expected": -0.1},
        {"expected": 1e9},
        {"expected": math.nan},
    ],
)
def test_damaged_evidence_is_refused(damage):
    sound = {"hits": [1.0, 0.5], "trials": [1.0, 1.0], "expected": 1.0}
    Acceptance(4).load({"all": sound, "programs": []})
    with pytest.raises(ValueError, match="hits"):
        Acceptance(4).load({"all": sound | damage, "programs": []})


def test_evidence_is_kept_to_four_decimals():
    model = Acceptance(1)
    for _ in range(6):
        model.learn([Evidence("r", ("p", 0), 1, 1, 1, 1)])
    seen = sum(PROGRAM.keep**n for n in range(6))
    assert round(seen, 4) != round(seen, 5)
    row = {
        "hits": [round(seen, 4)],
        "trials": [round(seen, 4)],
        "expected": round(model.programs.row(("p", 0)).expected, 4),
    }
    assert model.to_dict()["programs"] == [{"program": "p", "band": 0, **row}]
    assert row["expected"] != round(model.programs.row(("p", 0)).expected, 5)


def test_what_is_kept_of_costs_over_a_restart():
    """The lines are taken over half-trusted, of each shape its newest three ratios."""
    model, other = CostModel(), CostModel()
    drafts = {"draft_ms": 4.0, "draft_steps": 1, "draft_rows": 2, "catchup_ms": 3.0, "catchup_tokens": 2}
    for batch, extra, ms in ((1, 0, 9.0), (1, 2, 11.0), (2, 2, 20.0), (2, 2, 30.0), (2, 2, 22.0), (2, 2, 21.0)):
        requests = [RequestRound(str(i), 0, 0) for i in range(batch)]
        model.observe(RoundRecord(requests, batch + extra, ms, ms + 8.0, **drafts if extra else {}))
    other.load(model.to_dict())
    for name in ("verify", "draft", "catchup", "overhead"):
        mine, theirs = getattr(other, name), getattr(model, name)
        assert (mine.theta, mine.noise, mine.count) == (theirs.theta, theirs.noise, 1)
        assert np.allclose(mine.spread, np.diag([(0.2 * value) ** 2 for value in theirs.theta]))
    assert {batch: set(shapes) for batch, shapes in other.shapes.items()} == {1: {0, 2}, 2: {2}}
    assert other.shapes[2][2].recent == model.shapes[2][2].recent[-3:]
    assert other.shapes[2][2].factor == Shape(model.shapes[2][2].recent[-3:]).factor


def controller():
    return make_controller(SpecConfig.parse({"model_path": "x"}))


def test_a_file_of_another_pair_is_named_with_its_remedy(tmp_path):
    path = tmp_path / "costs.json"
    save_state(controller(), path, "y" * 300)
    with pytest.raises(ConfigError) as caught:
        load_state(controller(), path, "pair")
    assert str(caught.value) == (
        f"cost_file={path} was measured for {'y' * 200!r}, not for 'pair': "
        "name another file for this pair of models, or delete it."
    )


def test_a_file_of_the_largest_size_is_read_and_a_larger_one_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "costs.json"
    save_state(controller(), path, "pair")
    monkeypatch.setattr(state_file, "LARGEST", path.stat().st_size)
    assert load_state(controller(), path, "pair")
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(ConfigError, match=r"cost_file=.*too large to be one: name another file"):
        load_state(controller(), path, "pair")


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *(("cost", value) for value in (3, [], [3], "x", None, {})),
        *(("cost", {"lines": lines, "shapes": []}) for lines in (3, [], "x", {"verify": []}, {"verify": {}})),
        *(("cost", {"lines": {}, "shapes": shapes}) for shapes in (3, [3], [[]], [[1, 2, "x"]], None)),
        *(("plain_batches", value) for value in (3, [[]], ["x"], "x", None)),
        *(("acceptance", value) for value in (3, [], "x", None, {})),
    ],
)
def test_a_part_of_another_kind_is_a_damaged_file(tmp_path, part, value):
    path = tmp_path / "costs.json"
    save_state(controller(), path, "pair")
    path.write_text(json.dumps(json.loads(path.read_text()) | {part: value}))
    with pytest.raises(ConfigError, match="damaged: delete it"):
        load_state(controller(), path, "pair")
