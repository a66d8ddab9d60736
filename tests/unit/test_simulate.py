import json
import math
from itertools import pairwise

import numpy as np
import pytest

from sgl_spec.cli import main
from sgl_spec.config import SpecConfig
from sgl_spec.control import make_controller
from sgl_spec.control.expect import (
    ARTICLE_RATES,
    article_table,
    constant,
    expected_tokens,
    from_rates,
    temperature_table,
)
from sgl_spec.errors import ConfigError
from sgl_spec.simulate import Machine, Trace, TracedRequest, load, replay, synthetic


def fixed(k):
    return make_controller(SpecConfig.parse({"model_path": "x", "controller": "fixed", "num_speculative_tokens": k}))


def test_expected_tokens():
    assert expected_tokens([]) == 1.0
    assert expected_tokens(constant(0.5, 3)) == 1 + 0.5 + 0.25 + 0.125
    assert expected_tokens(constant(1.0, 4)) == 5.0


def test_survival_reproduces_the_articles_rates():
    survival = from_rates(ARTICLE_RATES)
    assert len(survival) == 10
    for k, rate in ARTICLE_RATES.items():
        assert sum(survival[:k]) / k == pytest.approx(rate)
    assert all(1.0 >= one >= two >= 0.0 for one, two in pairwise(survival))


def test_article_table_says_how_far_off_it_is():
    rows = {row.k: row for row in article_table({k: Machine().round_cost(k) for k in ARTICLE_RATES})}
    assert rows[5].article == pytest.approx(3.6)
    assert rows[5].as_rate == pytest.approx(4.6)  # the bonus token is missing
    assert rows[5].as_chance == pytest.approx((1 - 0.72**6) / (1 - 0.72))
    assert [round(100 * rows[k].chance_error) for k in (3, 5, 7, 10)] == [-19, 17, 69, 150]
    assert max(rows.values(), key=lambda row: row.article).k == 10  # so by K * p the longest is best
    assert max(rows.values(), key=lambda row: row.speedup).k == 5  # with costs it is not


def test_the_curve_between_two_rates_by_hand():
    """Accepted tokens 0, 1.5, 2 at K = 0, 2, 4: slopes 0.75, 0.25, tangents 1, 0.375 (harmonic mean), 0.1875."""
    assert from_rates({2: 0.75, 4: 0.5}) == pytest.approx([0.90625, 0.59375, 0.296875, 0.203125])
    assert from_rates({2: 0.5, 4: 0.375}) == pytest.approx([0.5 + 7 / 96, 0.5 - 7 / 96, 0.28125, 0.21875])
    assert from_rates({2: 0.75, 4: 0.475})[0] == pytest.approx(0.25 + 0.75 - 0.25 * 0.3 / 0.95)  # no tangent above 1
    assert from_rates({2: 0.5, 4: 0.5}) == pytest.approx([0.5] * 4)
    assert from_rates({1: 1.0, 2: 0.5}) == pytest.approx([1.0, 0.0])  # a flat end
    assert from_rates({2: 0.0, 3: 0.0}) == pytest.approx([0.0] * 3)


def test_a_row_of_the_articles_table_by_hand():
    (row,) = article_table({3: 2.0, 5: 1.0}, {3: 0.5})
    assert (row.k, row.p, row.article, row.as_rate) == (3, 0.5, 1.5, 2.5)
    assert (row.as_chance, row.chance_error, row.speedup) == pytest.approx((1.875, 1.5 / 1.875 - 1, 1.25))


def test_acceptance_at_a_temperature_is_the_overlap_of_two_laws():
    """The same synthetic texts, summed token by token; a noiseless draft that samples is always accepted."""
    rng = np.random.default_rng(0)
    spread = rng.uniform(1.0, 7.0, size=(256, 1))
    target = spread * rng.normal(size=(256, 400))
    draft = target + 0.5 * spread * rng.normal(size=target.shape)
    overlaps, hits = [], []
    for said, guessed in zip(target.tolist(), draft.tolist(), strict=True):
        p, q = ([math.exp(x / 0.7) for x in row] for row in (said, guessed))
        whole, drafted = sum(p), sum(q)
        overlaps.append(sum(min(a / whole, b / drafted) for a, b in zip(p, q, strict=True)))
        hits.append(p[q.index(max(q))] / whole)
    cost = {0: 1.0, 2: 1.4, 4: 2.0}
    (row,) = temperature_table(cost, (0.7,), noise=0.5)
    assert row.temperature == 0.7
    assert row.argmax == pytest.approx(sum(hits) / 256)
    assert row.sampled == pytest.approx(sum(overlaps) / 256)
    speeds = {k: expected_tokens(constant(max(row.sampled, row.argmax), k)) / c for k, c in cost.items()}
    assert row.k == max(speeds, key=speeds.__getitem__)
    assert row.speedup == pytest.approx(speeds[row.k])
    (noiseless,) = temperature_table(cost, (0.7,), noise=0.0)
    assert noiseless.sampled == pytest.approx(1.0)
    (usual,), (given,) = temperature_table(cost, (0.7,)), temperature_table(cost, (0.7,), 0.25)
    assert usual == given
    (cold,) = temperature_table(cost, (0.01,), noise=0.5)
    assert cold.argmax == pytest.approx(cold.sampled, abs=0.02)


def test_hot_text_is_harder_to_guess():
    rows = temperature_table({k: Machine().round_cost(k) for k in range(11)})
    for cool, hot in pairwise(rows):
        assert cool.argmax > hot.argmax
        assert cool.sampled < hot.sampled  # both laws flatten
    assert all(0.0 < row.sampled < 1.0 for row in rows)


def test_single_rate():
    assert from_rates({4: 0.5}) == pytest.approx([0.5] * 4)


def test_machine_costs():
    machine = Machine(plain_ms=10, verify_ratio={1: 1.1, 3: 1.5}, request_ms=1.0)
    assert machine.verify_ms(1, 0) == 10
    assert machine.verify_ms(1, 2) == pytest.approx(13)
    assert machine.verify_ms(1, 5) == pytest.approx(19)  # continued by the last slope
    assert machine.verify_ms(2, 2) == pytest.approx(16)  # one row more, and one request


def test_replay_by_hand():
    request = TracedRequest(hits={"model": "0110101"})
    # Token 0 is the prefill's. K=2 at token 1: both right, token 3 is the bonus. At 4: right, wrong; 5 corrects.
    # At 6 one token is left: limit 0.
    report = replay(fixed(2), [request], Machine())
    assert report.rounds == 3
    assert report.tokens == 6
    assert report.k_histogram == {0: 1, 2: 2}
    assert report.totals["num_accepted_draft_tokens"] == 3
    machine = Machine()
    drafted = machine.verify_ms(1, 2) + 2 * (machine.draft_step_ms + machine.draft_row_ms) + machine.overhead_ms
    assert report.ms == pytest.approx(2 * drafted + machine.verify_ms(1, 0) + machine.overhead_ms)
    assert report.plain_ms == pytest.approx(6 * (machine.plain_ms + machine.overhead_ms))


def test_other_sources_come_first():
    request = TracedRequest(
        hits={"model": "1111111111", "cache": "..11..00..", "prediction": ".....1...."}, acceptance={"cache": 0.9}
    )
    assert [(offer.source, right) for offer, right in request.offers(2)] == [("cache", True), ("cache", True)]
    assert request.offers(2)[0][0].acceptance == 0.9
    assert request.offers(0) == []
    report = replay(fixed(3), [request], Machine())
    assert set(report.totals["by_source"]) == {"model", "cache", "prediction"}


def test_runs_are_depth_dependent_quality():
    report = replay(fixed(4), [TracedRequest(runs=[0, 2, 9, 9, 3, 9, 9, 9, 9, 9])], Machine())
    assert report.totals["num_accepted_draft_tokens"] >= 2


def test_plain_is_the_measure():
    requests = synthetic(constant(0.5, 5), requests=5, length=40)
    for batch in (1, 3):
        report = replay(fixed(0), requests, Machine(), batch)
        assert report.speedup == pytest.approx(1.0, abs=0.02 if batch == 1 else 0.2)
        assert report.tokens == 5 * 39


@pytest.mark.parametrize(
    "document",
    [
        {"requests": []},
        {"requests": [{"hits": {"model": "10x"}}]},
        {"requests": [{"hits": {"model": "101", "cache": "1"}}]},
        {"requests": [{"hits": {}}]},
        {"requests": [{"hits": {"model": ""}}]},
        {"requests": [{"hits": {"model": "1"}, "more": 1}]},
        {"requests": [{"hits": {"model": "1"}}], "machine": {"plain_ms": 0}},
    ],
)
def test_wrong_traces_get_one_sentence(tmp_path, document):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="is not a trace") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_missing_trace(tmp_path):
    with pytest.raises(ConfigError, match="no trace file"):
        load(tmp_path / "none.json")


def run_cli(capsys, *arguments):
    status = main(["simulate", *arguments])
    return status, capsys.readouterr()


def test_command_without_a_trace(capsys):
    status, output = run_cli(capsys, "--controller", "ema", "--json")
    assert status == 0
    document = json.loads(output.out.splitlines()[-1])
    assert [row["num_speculative_tokens"] for row in document["article"]] == [3, 5, 7, 10]
    for row in document["article"]:
        assert row["replayed_acceptance"] == pytest.approx(row["article_acceptance"], abs=0.03)
    assert [report["controller"] for report in document["reports"]] == ["ema"]
    assert [row["temperature"] for row in document["temperatures"]] == [0.3, 0.7, 1.0, 1.2]
    assert "The article's table" in output.err


def test_command_with_a_trace(capsys, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(Trace(requests=synthetic(constant(0.7, 8), requests=2, length=60)).model_dump_json())
    status, output = run_cli(capsys, str(path), "--batch", "2")
    assert status == 0
    assert "throughput" in output.out
    assert "article" not in output.out


def test_command_with_an_unknown_policy(capsys):
    status, output = run_cli(capsys, "--controller", "thruput")
    assert status == 2
    assert "throughput" in output.err
