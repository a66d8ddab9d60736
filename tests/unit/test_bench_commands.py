"""Each benchmark on an engine whose speeds are given: which calls it makes, and its ratio and rows by hand."""

from functools import partial
from pathlib import Path

import pytest

from sgl_spec.bench import adaptive, prediction, prefix, speedup, sweep, worst_case
from sgl_spec.bench.edits import copy_task, some_edits
from tests.unit.bench_engine import TimedClient, arm_of, paced, run_bench


@pytest.fixture
def bench(monkeypatch, capsys):
    return partial(run_bench, monkeypatch, capsys)


def test_speedup(bench):
    client = paced(plain=100, draft_only=80, cache_only=90, all=50)
    result, started = bench(speedup, client, prompts=2, max_new_tokens=10)
    assert (result["ratio"], result["spread"]) == (2.0, [2.0, 2.0])
    assert started == [("target", "draft", {})]
    rows = {(row["task"], row["arm"]): row for row in result["rows"]}
    assert len(rows) == 12
    assert rows["chat", "draft only"]["ratio_to_plain"] == 1.25
    assert rows["code", "all"] == {
        "task": "code",
        "arm": "all",
        "tokens": 20,
        "seconds": 1.0,
        "tokens_per_s": 20.0,
        "ratio_to_plain": 2.0,
        "spread": [2.0, 2.0],
        "acceptance_rate": 0.75,
        "guesses_per_round": 4.0,
        "tokens_per_step": 4.0,
        "plain_share": 0.0,
        "same_ids": True,
    }
    assert rows["code", "plain"]["plain_share"] == 1.0
    assert rows["code", "plain"]["acceptance_rate"] is None
    assert result["provenance"]["threads"] == 3
    assert len(client.calls) == 24
    bench(speedup, client, quick=True)
    assert len(client.calls) == 24 + 12
    assert client.calls[-1].how.max_new_tokens == 16


def test_adaptive_finds_the_best_fixed_length_of_each_task(bench):
    def pace(asked):
        slow = "code" in asked.texts[0]  # there K=8 is best, elsewhere K=3
        fixed = {"adaptive": 50, "K=0": 100, "K=1": 80, "K=2": 70, "K=3": 90 if slow else 55, "K=5": 60}
        return {**fixed, "K=8": 52 if slow else 99}[arm_of(asked)] / 1e3

    result, _ = bench(adaptive, TimedClient(pace), prompts=5)
    assert result["ratio"] == 1.2  # against K=5
    best = {row["task"]: row["arm"] for row in result["rows"] if "best" in row["arm"]}
    assert best == {"chat": "K=3 (best fixed)", "code": "K=8 (best fixed)", "summarization": "K=3 (best fixed)"} | {
        "mix": "K=5 (best fixed)"
    }
    rows = {(row["task"], row["arm"]): row for row in result["rows"]}
    assert (rows["chat", "K=0"]["ratio_to_plain"], rows["chat", "K=0"]["adaptive_to_this"]) == (1.0, 2.0)
    assert rows["chat", "adaptive"]["tokens"] == 5 * 64
    assert rows["mix", "adaptive"]["tokens"] == 15 * 64
    quick, _ = bench(adaptive, TimedClient(pace), quick=True)
    assert {row["tokens"] for row in quick["rows"] if row["task"] == "chat"} == {12}


def test_sweep_names_the_fastest_length(bench):
    client = paced(plain=100, K3=60, K5=50, K7=80, K10=120)
    result, _ = bench(sweep, client, prompts=1, max_new_tokens=8)
    assert result["ratio"] == 2.0
    rows = [(row["temperature"], row["arm"], row["ratio_to_plain"]) for row in result["rows"]]
    greedy = [(0.0, "plain", 1.0), (0.0, "K=3", 1.667), (0.0, "K=5", 2.0), (0.0, "K=7", 1.25), (0.0, "K=10", 0.833)]
    hot = [(t, arm, ratio) for t in (0.3, 0.7, 1.0, 1.2) for arm, ratio in (("plain", 1.0), ("K=5", 2.0))]
    assert rows == [*greedy, *hot]
    assert [row["article_acceptance"] for row in result["rows"][:5]] == [None, *sweep.ARTICLE_RATES.values()]
    assert [row["same_ids"] for row in result["rows"]] == [True] * 5 + [None] * 8
    assert {call.how.temperature for call in client.calls} == {0.0, 0.3, 0.7, 1.0, 1.2}
    assert all(call.how.ignore_eos for call in client.calls)
    bench(sweep, client, quick=True)
    assert client.calls[-1].how.max_new_tokens == 12


@pytest.mark.parametrize(("quick", "batch"), [(False, 16), (True, 4)])
def test_worst_case_is_the_least_of_four(bench, monkeypatch, quick, batch):
    made = []
    monkeypatch.setattr(worst_case, "random_draft", lambda target, folder: made.append((target, folder)) or "random")

    def pace(asked):
        cost = {"temperature 1.2, creative": 98, f"batch {batch}": 100, "answers of 8 tokens": 99}
        case = asked.options["program"].split("/")[0]
        return (100 if arm_of(asked) == "plain" else cost.get(case, 104)) / 1e3

    client = TimedClient(pace)
    result, started = bench(worst_case, client, prompts=3, quick=quick)
    assert result["ratio"] == round(100 / 104, 4)
    assert started == [("target", "draft", {}), ("target", "random", {"draft_cache": False})]
    assert [target for target, _ in made] == [Path("target")]
    assert [row["case"] for row in result["rows"][::2]] == [
        "draft of random weights",
        "temperature 1.2, creative",
        f"batch {batch}",
        "answers of 8 tokens",
    ]
    assert [row["same_ids"] for row in result["rows"]] == [True, True, None, None, True, True, True, True]
    assert {len(call.texts) for call in client.calls} == {1, batch}
    short = [call for call in client.calls if call.how.max_new_tokens == 8]
    assert len(short) == 2 * 2 * (2 if quick else 3)


@pytest.mark.parametrize("count", range(1, 21))
def test_an_unrelated_prediction_is_never_the_right_one(bench, count):
    client = TimedClient(lambda asked: 1e-3)
    bench(prediction, client, prompts=count, max_new_tokens=4)
    right = {copy_task(edit)[0]: copy_task(edit)[1] for edit in some_edits(count)}
    given = [call for call in client.calls if call.options.get("program") and call.how.max_new_tokens > 1]
    for call in given:
        expected = right[call.texts[0]]
        arm = call.options["program"]
        assert (call.options["prediction"] == expected) is (arm == prediction.PREDICTED)
        assert (call.options["prediction"] is None) is (arm == "plain")
    assert len(given) == 3 * count


def test_prediction(bench):
    edits = some_edits(2)

    def reply(asked):
        edit = next(one for one in edits if one.name in asked.key or copy_task(one)[0] == asked.texts[0])
        head = copy_task(edit)[0].rpartition("a copy\n")[2]
        return edit.new.removeprefix(head)[:100]

    paces = {"plain": 100, prediction.PREDICTED: 25, prediction.UNRELATED: 110}
    client = TimedClient(lambda asked: paces.get(asked.options.get("program"), 5000) / 1e3, reply)
    result, _ = bench(prediction, client, prompts=2, max_new_tokens=10)
    assert result["ratio"] == 4.0  # the prompt's prefill is not in it
    assert [row["ratio_to_plain"] for row in result["rows"]] == [1.0, 4.0, 0.909]
    assert result["rows"][0]["answer_like_new_file"] == 1.0
    prefills = [call for call in client.calls if call.how.max_new_tokens == 1]
    assert len(prefills) == 6
    assert {call.key for call in prefills} == {call.key for call in client.calls}  # each key was warmed
    bench(prediction, client, quick=True)
    assert client.calls[-1].how.max_new_tokens == 24


def test_prefix_shares_on_one_side_only(bench):
    client = TimedClient(lambda asked: (0.01 if str(asked.key).startswith("shared") else 0.04) / len(asked.texts))
    result, _ = bench(prefix, client, texts=2, rounds=2)
    cold, shared = 2 * 2 * 32 * 0.04, 2 * (6 + 32 + 32) * 0.01
    assert result["ratio"] == round(cold / shared, 4)
    rows = {row["phase"]: row for row in result["rows"]}
    assert rows["shared: forks"] == {
        "phase": "shared: forks",
        "requests": 16,
        "prompt_tokens": 16 * 50,
        "hit_rate_target": 0.8,
        "hit_rate_draft": 0.4,
        "seconds": 0.64,
        "acceptance_rate": 0.75,
        "tokens": 16 * 32,
    }
    assert set(rows) == {"shared: prefix alone", "shared: forks", "shared: forks later"} | {
        "cold: forks",
        "cold: forks later",
    }
    sides = [str(call.key[0] if isinstance(call.key, list) else call.key)[:4] for call in client.calls]
    assert sides == ["shar", "shar", "othe", "shar", "cold", "cold", "cold", "cold", "shar", "shar", "othe", "shar"]
    of_forks = [call.key for call in client.calls if isinstance(call.key, list)]
    assert len({key for keys in of_forks for key in keys}) == 4 * 8  # every cold fork is alone
    heads = {text.partition("\n\nQuestion")[0] for call in client.calls for text in call.texts if "Question" in text}
    assert len(heads) == 2  # the second round has other texts
    quick, _ = bench(prefix, client, quick=True)
    assert [row["requests"] for row in quick["rows"]] == [1, 2, 2, 2, 2]
