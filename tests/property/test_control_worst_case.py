"""Bounds that hold whatever the draft does, on simulated machines."""

import random
from itertools import pairwise

import pytest

from sgl_spec.config import SpecConfig
from sgl_spec.control import make_controller
from sgl_spec.control.base import RequestRound, RequestView, RoundRecord
from sgl_spec.control.expect import constant
from sgl_spec.simulate import Machine, replay, synthetic

RATIOS = {1: 1.04, 2: 1.1, 3: 1.2, 4: 1.25, 6: 1.5, 8: 1.75}
MACHINES = {
    "cheap verify, 1 ms draft": Machine(verify_ratio=RATIOS, draft_step_ms=1.0),
    "cheap verify, 3 ms draft": Machine(verify_ratio=RATIOS, draft_step_ms=3.0),
    "dear verify": Machine(
        plain_ms=60, verify_ratio={1: 1.52, 2: 1.79, 3: 1.5, 5: 1.75, 7: 1.78, 8: 1.9}, draft_step_ms=5
    ),
}


def controller(name="throughput", k=5):
    return make_controller(
        SpecConfig.parse(
            {"model_path": "x", "controller": name, "num_speculative_tokens": k, "max_speculative_tokens": 10}
        )
    )


def noise(seed, spread=0.04, outliers=0.02):
    draw = random.Random(seed)
    return lambda: max(0.5, draw.gauss(1, spread)) * (3 if draw.random() < outliers else 1)


def against_plain(machine, requests, batch, seed):
    """Throughput relative to plain decoding under the same noise."""
    report = replay(controller(), requests, machine, batch, noise(seed))
    plain = replay(controller("fixed", 0), requests, machine, batch, noise(seed))
    return report.speedup / plain.speedup, report


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("batch", "length", "count"), [(1, 250, 4), (1, 9, 60), (8, 60, 40), (16, 9, 160)])
def test_a_hostile_draft_costs_at_most_three_percent(machine, batch, length, count):
    for seed, acceptance in ((0, 0.0), (1, 0.05)):
        requests = synthetic(constant(acceptance, 10), requests=count, length=length, seed=seed)
        ratio, _ = against_plain(MACHINES[machine], requests, batch, seed + 1)
        assert ratio >= 0.97


@pytest.mark.parametrize("machine", MACHINES)
def test_many_strange_programs_cannot_be_made_to_pay(machine):
    """Every request brings a new program key, each with a draft that fails."""
    requests = [synthetic([0.0], requests=1, length=12, seed=i, program=str(i))[0] for i in range(150)]
    ratio, report = against_plain(MACHINES[machine], requests, 4, 3)
    assert ratio >= 0.97
    assert report.controller_state["probes"] < 150


@pytest.mark.parametrize("acceptance", [0.6, 0.8, 0.95])
@pytest.mark.parametrize("machine", MACHINES)
def test_a_good_draft_is_used_nearly_as_well_as_by_the_best_fixed_k(machine, acceptance):
    requests = synthetic(constant(acceptance, 10), requests=6, length=300, seed=5)
    best = max(
        replay(controller("fixed", k), requests, MACHINES[machine], 1, noise(9)).speedup for k in (0, 1, 2, 3, 5, 8)
    )
    assert replay(controller(), requests, MACHINES[machine], 1, noise(9)).speedup >= 0.93 * best


def test_a_mixture_beats_every_fixed_k():
    """Half of the programs have a good draft, half a hostile one."""
    requests = []
    for i in range(16):
        requests += synthetic(constant((0.0, 0.95)[i % 2], 10), requests=1, length=200, seed=i, program=str(i % 2))
    for machine in MACHINES.values():
        best = max(replay(controller("fixed", k), requests, machine, 1, noise(2)).speedup for k in (0, 1, 2, 3, 5, 8))
        assert replay(controller(), requests, machine, 1, noise(2)).speedup > 1.1 * best


def test_a_hostile_draft_is_found_out_within_a_few_rounds():
    requests = synthetic([0.0], requests=1, length=400)
    policy = controller()
    drafted = []
    choose = policy.choose
    policy.choose = lambda views: drafted.append(choose(views)) or drafted[-1]
    replay(policy, requests, MACHINES["cheap verify, 1 ms draft"], 1)
    rounds = [index for index, [k] in enumerate(drafted) if k]
    assert rounds[5] <= 8  # the first look is over
    assert len([index for index in rounds if index >= 8]) <= 20
    assert policy.snapshot()["probe_ms"] <= 4 * 20.5 + 0.01 * 400 * 20.5
    later = controller()
    later.parts["throughput"].load(policy.parts["throughput"].to_dict())
    report = replay(later, requests, MACHINES["cheap verify, 1 ms draft"], 1)
    assert report.controller_state["probes"] <= 24  # another server start does not begin from nothing


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pivot", [0.75, 1.0, 2.0, 2.5])
def test_acceptance_around_a_pivot_does_not_flap(seed, pivot):
    """Accepted tokens swing by 0.5 around a pivot for 300 rounds: at most one change of K per 10 rounds."""
    draw = random.Random(seed)
    machine = MACHINES["cheap verify, 3 ms draft"]
    policy = controller()
    chosen = []
    for number in range(300):
        [k] = policy.choose([RequestView("a", 100)])
        chosen.append(k)
        target = pivot + (0.5 if (number // 5) % 2 else -0.5)
        accepted = min(k, int(target) + (draw.random() < target - int(target)))
        factor = draw.gauss(1, 0.04)
        verify, draft = machine.verify_ms(1, k) * factor, machine.draft_step_ms * factor
        policy.observe(
            RoundRecord(
                [RequestRound("a", k, accepted)],
                1 + k,
                verify,
                verify + k * draft + 0.5,
                draft_ms=max(k - 1, 0) * draft,
                draft_steps=max(k - 1, 0),
                draft_rows=max(k - 1, 0),
                catchup_ms=draft if k else 0.0,
                catchup_tokens=2 if k else 0,
            )
        )
    warm = chosen[20:]
    changes = sum(one != two for one, two in pairwise(warm))
    assert changes <= len(warm) / 10


def test_the_same_observations_give_the_same_decisions():
    requests = synthetic(constant(0.6, 10), requests=12, length=60, seed=3)
    machine = MACHINES["cheap verify, 1 ms draft"]
    for name in ("throughput", "threshold", "ema", "bandit"):
        runs = [replay(controller(name), requests, machine, 4, noise(1)) for _ in range(2)]
        assert runs[0] == runs[1]
