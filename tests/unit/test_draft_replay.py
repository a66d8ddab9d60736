"""Hit rates and honesty of the estimates on replayed text."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from sgl_spec.draft.cache import DraftCache
from sgl_spec.draft.replay import Recorded, main, read_jsonl, repetitive_text, replay
from sgl_spec.draft.sources import HostSources


def test_repetitive_text_is_guessed_and_estimates_are_honest() -> None:
    result = replay(HostSources(DraftCache()), repetitive_text())
    assert result.tokens_per_round > 2.0
    assert set(result.by_source) == {"cache", "prompt"}
    assert abs(result.expected - result.right) < 0.05 * result.tested
    verified = sum(c.proposed for c in result.by_source.values())
    accepted = sum(c.accepted for c in result.by_source.values())
    assert accepted == result.tokens - result.rounds
    assert accepted > 0.6 * verified


def test_the_same_requests_again_are_nearly_all_guessed() -> None:
    sources = HostSources(DraftCache())
    first = replay(sources, repetitive_text(requests=10, noise=0.3))
    again = replay(sources, repetitive_text(requests=10, noise=0.3))
    assert again.tokens_per_round > 2 * first.tokens_per_round


def test_random_text_costs_few_guesses() -> None:
    rng = random.Random(0)
    texts = [tuple(rng.randrange(200) for _ in range(300)) for _ in range(30)]
    result = replay(HostSources(DraftCache()), [Recorded(t[:50], t[50:]) for t in texts])
    verified = sum(c.proposed for c in result.by_source.values())
    assert result.tokens_per_round < 1.1
    assert verified < 0.05 * result.rounds


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_an_edited_text_is_followed_by_its_prediction(share: float) -> None:
    rng = random.Random(1)
    requests = []
    for _ in range(10):
        old = [rng.randrange(3000) for _ in range(400)]
        new = [rng.randrange(3000) if rng.random() < share else t for t in old]
        requests.append(Recorded((1, 2, 3), tuple(new), "edit", tuple(old)))
    result = replay(HostSources(), requests)
    assert result.tokens_per_round > (4.0 if share < 0.05 else 2.0)


def test_the_command_reads_jsonl_and_prints_one_json_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "outputs.jsonl"
    path.write_text(json.dumps({"prompt": [1, 2, 3, 1, 2], "output": [3, 1, 2, 3]}) + "\n")
    assert next(read_jsonl(path)) == Recorded((1, 2, 3, 1, 2), (3, 1, 2, 3))
    assert main([str(path)]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["name"] == "replay"
    assert last["rounds"] >= 1
