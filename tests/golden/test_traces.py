"""Recorded acceptance gives the recorded K, round by round."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from regenerate import POLICIES, SCENARIOS, decide, path_of, record


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("policy", POLICIES)
def test_decisions(name, policy):
    document = json.loads(path_of(name).read_text())
    decisions = decide(policy, document["rounds"])
    expected = document["decisions"][policy]
    first = next((i for i, (one, two) in enumerate(zip(decisions, expected, strict=True)) if one != two), None)
    assert first is None, f"round {first}: {decisions[first]} instead of {expected[first]}; see regenerate.py"


@pytest.mark.parametrize("name", SCENARIOS)
def test_traces_are_what_the_script_records(name):
    assert json.loads(path_of(name).read_text())["rounds"] == record(name)


def test_the_default_policy_does_what_the_scenarios_ask():
    chosen = {name: json.loads(path_of(name).read_text())["decisions"]["throughput"] for name in SCENARIOS}
    steady = [number for number in range(120) if number % 17 != 16]  # rounds without offers

    def mean(name, rid, rounds):
        values = [chosen[name][n][rid] for n in rounds if n in steady and rid in chosen[name][n]]
        return sum(values) / len(values)

    assert mean("good", "a", range(30, 110)) > 4
    assert mean("hostile", "a", range(30, 120)) < 0.4
    assert mean("change of text", "a", range(30, 60)) > mean("change of text", "a", range(90, 120)) + 2
    assert mean("mixed batch", "a", range(40, 85)) > mean("mixed batch", "b", range(40, 85)) + 2
