"""Golden traces: recorded outcomes in, K per round out, as JSON beside this file.

`python tests/golden/regenerate.py` rewrites them; the diff then shows how a change of policy changed decisions.
"""

import json
import random
from pathlib import Path

from sgl_spec.config import SpecConfig
from sgl_spec.control import make_controller
from sgl_spec.control.base import Offer, RequestRound, RequestView, RoundRecord

FOLDER = Path(__file__).parent
POLICIES = ("throughput", "threshold", "ema", "bandit", "fixed")
LIKELY = {"good": 0.9, "middling": 0.55, "hostile": 0.0}
ROUNDS = 120


def scenario(name):
    """Requests as (rid, program, first round, last round), and acceptance by program and round."""
    if name == "change of text":
        return [("a", "chat", 0, ROUNDS)], lambda program, number: 0.9 if number < 60 else 0.1
    if name == "mixed batch":
        requests = [("a", "good", 0, 90), ("b", "hostile", 0, ROUNDS), ("c", "middling", 30, ROUNDS)]
        return requests, lambda program, number: LIKELY[program]
    return [("a", name, 0, ROUNDS)], lambda program, number: LIKELY[program]


SCENARIOS = ("good", "middling", "hostile", "change of text", "mixed batch")


def record(name, seed=0):
    """The trace of a scenario: for each round and request how many guesses in a row would be right."""
    draw = random.Random(f"{name}{seed}")
    requests, likely = scenario(name)
    rounds = []
    for number in range(ROUNDS):
        runs = {}
        for rid, program, first, last in requests:
            if first <= number < last:
                run = 0
                while run < 10 and draw.random() < likely(program, number):
                    run += 1
                runs[rid] = [program, run, last - number]
        rounds.append({"runs": runs, "factor": round(draw.gauss(1, 0.03), 4)})
    return rounds


def decide(policy, rounds):
    """K of each request in each round when `policy` runs through a trace."""
    controller = make_controller(SpecConfig.parse({"model_path": "x", "controller": policy}))
    chosen, known = [], set()
    for number, entry in enumerate(rounds):
        runs = entry["runs"]
        for gone in known - set(runs):
            controller.forget(gone)
        known = set(runs)
        views = [
            RequestView(rid, remaining, program=program, offers=[Offer("cache", 0.8)] * 3 if number % 17 == 16 else ())
            for rid, (program, _, remaining) in runs.items()
        ]
        ks = controller.choose(views)
        chosen.append(dict(zip(runs, ks, strict=True)))
        controller.observe(measured(views, ks, runs, entry["factor"]))
    return chosen


def measured(views, ks, runs, factor):
    outcomes = []
    for view, k in zip(views, ks, strict=True):
        ready = min(k, len(view.offers))
        sources = ["cache"] * ready + ["model"] * (k - ready)
        outcomes.append(RequestRound(view.rid, k, min(k, runs[view.rid][1]), sources))
    drafted = [outcome.sources.count("model") for outcome in outcomes]
    steps, active, extra = max(max(drafted) - 1, 0), sum(map(bool, drafted)), sum(ks)
    verify = factor * (18.0 + 2.0 * len(ks) + 1.2 * extra)
    draft, catchup = factor * 1.5 * steps, factor * 1.6 * bool(active)
    return RoundRecord(
        outcomes,
        len(ks) + extra,
        verify,
        verify + draft + catchup + 0.5,
        draft_ms=draft,
        draft_steps=steps,
        draft_rows=sum(max(count - 1, 0) for count in drafted),
        catchup_ms=catchup,
        catchup_tokens=2 * active,
    )


def path_of(name):
    return FOLDER / f"{name.replace(' ', '_')}.json"


if __name__ == "__main__":
    for name in SCENARIOS:
        rounds = record(name)
        document = {"rounds": rounds, "decisions": {policy: decide(policy, rounds) for policy in POLICIES}}
        path_of(name).write_text(json.dumps(document, separators=(",", ":")) + "\n")
