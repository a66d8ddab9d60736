"""Prediction and cache together: order, continuation, counting."""

from __future__ import annotations

import pytest

from sgl_spec.draft.base import Proposal, SourceCount, SourceOptions
from sgl_spec.draft.cache import DraftCache
from sgl_spec.draft.sources import HostSources
from sgl_spec.errors import SpecError


def test_prediction_first_then_cache_after_its_end() -> None:
    sources = HostSources(DraftCache())
    sources.begin("a", [*range(100, 140)], SourceOptions())
    sources.begin("r", [1], SourceOptions(prediction=(100, 101, 102)))
    proposal = sources.draft("r", 8)
    assert proposal.tokens == list(range(100, 108))
    assert proposal.sources == ["prediction"] * 3 + ["cache"] * 5
    assert proposal.q is None


def test_cache_when_the_prediction_is_lost() -> None:
    sources = HostSources(DraftCache())
    sources.begin("r", [*range(50, 60), 1, 50], SourceOptions(prediction=(200, 201)))
    sources.accept("r", [51])
    assert sources.draft("r", 3).sources == ["prompt"] * 3


def test_only_verified_guesses_are_counted() -> None:
    sources = HostSources(DraftCache())
    sources.begin("a", [*range(100, 140)], SourceOptions())
    sources.begin("r", [1], SourceOptions(prediction=(100, 101, 102)))
    sources.draft("r", 8)
    sources.accept("r", [100, 101, 102, 103, 7], verified=5)
    assert sources.report("r").by_source == {"prediction": SourceCount(3, 3), "cache": SourceCount(2, 1)}
    sources.draft("r", 8)
    sources.accept("r", [9], verified=0)
    report = sources.end("r")
    assert report.by_source == {"prediction": SourceCount(3, 3), "cache": SourceCount(2, 1)}
    assert report.prediction.accepted_prediction_tokens == 3
    assert sources.totals == report.by_source
    sources.end("a")
    assert "a" not in sources


def test_a_right_token_after_a_wrong_one_is_not_accepted() -> None:
    sources = HostSources()
    sources.begin("r", [1], SourceOptions(prediction=(5, 6, 7)))
    sources.draft("r", 3)
    sources.accept("r", [5, 9, 7], verified=3)
    assert sources.end("r").by_source == {"prediction": SourceCount(3, 1)}


def test_without_cache_and_prediction_nothing_is_proposed() -> None:
    sources = HostSources()
    sources.begin("r", [1, 2, 1, 2], SourceOptions())
    assert sources.draft("r", 8) == Proposal()
    sources.accept("r", [1])
    assert sources.end("r").by_source == {}
    sources.flush()


def test_a_request_may_stay_out_of_the_cache_altogether() -> None:
    cache = DraftCache()
    sources = HostSources(cache)
    sources.begin("r", [1, 2, 1, 2], SourceOptions(cache=False, prompt_lookup=False))
    assert "r" not in cache
    assert sources.draft("r", 8) == Proposal()
    sources.accept("r", [1])
    sources.end("r")


def test_expected_gain_of_a_proposal() -> None:
    proposal = Proposal([1, 2, 3], [0.5, 0.5, 1.0], ["cache"] * 3)
    assert proposal.expected_accepted() == 1.0
    assert proposal.survival() == 0.25


def test_wrong_use_is_one_sentence() -> None:
    sources = HostSources(DraftCache())
    sources.begin("r", [1], SourceOptions(prediction=(1,)))
    with pytest.raises(SpecError, match="'r' has begun already"):
        sources.begin("r", [1], SourceOptions())
    with pytest.raises(SpecError, match="'x' has not begun"):
        sources.accept("x", [1])
    sources.draft("r", 1)
    with pytest.raises(SpecError, match="verified=2 but only 1 guesses"):
        sources.accept("r", [1, 2], verified=2)


def test_flush_empties_the_cache_if_there_is_one() -> None:
    sources = HostSources(DraftCache())
    sources.begin("a", [*range(100, 140)], SourceOptions())
    sources.end("a")
    sources.flush()
    sources.begin("b", [1, 110, 111], SourceOptions())
    assert sources.draft("b", 4).tokens == []
    HostSources(None).flush()


def test_guesses_of_the_cache_alone_are_counted() -> None:
    sources = HostSources(DraftCache())
    sources.begin("r", [*range(50, 60), 50, 51], SourceOptions())
    assert sources.draft("r", 3).tokens == [52, 53, 54]
    sources.accept("r", [52, 9], verified=2)
    assert sources.report("r").by_source == {"prompt": SourceCount(2, 1)}
