"""The pointer into a prediction: follows, re-aligns, gives up; usage as OpenAI counts it."""

from __future__ import annotations

import random
from itertools import accumulate
from operator import mul

import pytest

from sgl_spec.draft.base import SourceOptions
from sgl_spec.draft.calibration import MAX_KEYS
from sgl_spec.draft.prediction import PredictionSource, PredictionUsage
from sgl_spec.errors import SpecError

OLD = list(range(100, 160))


def replay(
    prediction: list[int], output: list[int], limit: int = 8, cut: float = 0.3
) -> tuple[int, int, PredictionUsage]:
    """Emit `output` with the guesses that survive with `cut` or more; return rounds, guesses, usage."""
    source = PredictionSource()
    source.begin("r", [], SourceOptions(prediction=tuple(prediction)))
    at = rounds = verified = 0
    while at < len(output):
        proposal = source.draft("r", limit)
        survival = accumulate(proposal.acceptance, mul)
        tokens = [t for t, s in zip(proposal.tokens, survival, strict=True) if s >= cut]
        right = 0
        while right < len(tokens) and at + right < len(output) and tokens[right] == output[at + right]:
            right += 1
        source.accept("r", output[at : at + right + 1])
        at, rounds, verified = at + right + 1, rounds + 1, verified + len(tokens)
    return rounds, verified, source.usage("r")


def test_a_right_prediction_is_followed_to_its_end() -> None:
    rounds, _, usage = replay(OLD, OLD)
    assert rounds == -(-len(OLD) // 9)
    assert usage == PredictionUsage(60, 0)


@pytest.mark.parametrize(
    ("output", "accepted"),
    [
        ([*OLD[:30], 1, 2, 3, *OLD[30:]], 58),  # an insertion hides the two tokens that find the place again
        (OLD[:30] + OLD[35:], 53),  # a deletion: five are gone, two find the place
        ([*OLD[:30], 1, *OLD[31:]], 57),  # a substitution
        (OLD[40:] + OLD[:40], 54),  # a move: 4 tokens to believe a far place, 2 for the way back
    ],
)
def test_it_realigns(output: list[int], accepted: int) -> None:
    rounds, verified, usage = replay(OLD, output)
    assert rounds <= 16
    assert verified <= len(output) + 16
    assert abs(usage.accepted_prediction_tokens - accepted) <= 4
    assert usage.accepted_prediction_tokens + usage.rejected_prediction_tokens == len(OLD)


def test_a_wrong_prediction_is_dropped_after_its_first_guess() -> None:
    rng = random.Random(0)
    output = [rng.randrange(1000, 2000) for _ in range(200)]
    rounds, verified, usage = replay(OLD, output)
    assert rounds == 200
    assert verified <= 8
    assert usage == PredictionUsage(0, 60)


def test_a_wrong_prediction_with_common_bigrams_stops_being_guessed() -> None:
    rng = random.Random(0)
    old = [rng.choice([1, 2, 3, 10 + i % 50]) for i in range(300)]
    output = [rng.choice([1, 2, 3, 70 + i % 50]) for i in range(600)]
    rounds, verified, usage = replay(old, output)
    assert verified < 0.15 * rounds
    assert usage.accepted_prediction_tokens < 60


def test_while_lost_it_proposes_nothing() -> None:
    source = PredictionSource()
    source.begin("r", [], SourceOptions(prediction=tuple(OLD)))
    source.accept("r", [1])
    assert len(source.draft("r", 8)) == 0
    source.accept("r", [OLD[20], OLD[21]])
    assert source.draft("r", 2).tokens == OLD[22:24]
    assert set(source.draft("r", 2).sources) == {"prediction"}


def test_each_token_of_the_prediction_counts_once() -> None:
    _, _, usage = replay([1, 2, 3, 4], [1, 2, 3, 4] * 10)
    assert usage == PredictionUsage(4, 0)


def test_a_prefix_moves_only_a_copy_of_the_pointer() -> None:
    source = PredictionSource()
    source.begin("r", [], SourceOptions(prediction=tuple(OLD)))
    assert source.draft("r", 2, OLD[:3]).tokens == OLD[3:5]
    assert source.draft("r", 2, [7, 8]).tokens == []
    assert source.draft("r", 2).tokens == OLD[:2]


def test_requests_without_a_prediction_pass_through() -> None:
    source = PredictionSource()
    source.begin("r", [1, 2], SourceOptions())
    assert len(source.draft("r", 4)) == 0
    source.accept("r", [1])
    assert source.usage("r") == PredictionUsage(0, 0)
    source.end("r")


def test_a_second_begin_is_refused() -> None:
    source = PredictionSource()
    source.begin("r", [], SourceOptions(prediction=(1,)))
    with pytest.raises(SpecError, match="has begun already"):
        source.begin("r", [], SourceOptions(prediction=(1,)))


def test_namespaces_are_bounded_and_strangers_ignored() -> None:
    source = PredictionSource()
    for n in range(MAX_KEYS + 3):
        source.begin(str(n), [], SourceOptions(prediction=(1, 2), namespace=str(n)))
    assert len(source._calibration) == MAX_KEYS
    source.accept("stranger", [1])
    assert source.draft("0", 2).tokens == [1, 2]
