import json

import pytest

from sgl_spec.control.base import RequestRound
from sgl_spec.stats import RequestStats, SpecStats, Tally, acceptance_length, acceptance_rate

ROUNDS = [
    RequestRound("r", 3, 2, ["cache", "model", "model"]),
    RequestRound("r", 0, 0),
    RequestRound("r", 3, 0, ["cache", "cache", "model"]),
    RequestRound("r", 1, 1),
]


def fill(stats):
    for outcome in ROUNDS:
        stats.add(outcome)
    return stats


def test_definitions():
    assert acceptance_rate(3, 7) == 3 / 7
    assert acceptance_rate(0, 0) is None
    assert acceptance_length(3, 4) == 1.75
    assert acceptance_length(0, 0) is None


def test_request_stats_by_hand():
    document = fill(RequestStats()).as_dict()
    assert document["num_spec_steps"] == 3
    assert document["num_plain_steps"] == 1
    assert document["num_draft_tokens"] == 7
    assert document["num_accepted_draft_tokens"] == 3
    assert document["draft_acceptance_rate"] == 3 / 7
    assert document["mean_acceptance_length"] == 1 + 3 / 3
    assert document["tokens_per_step"] == 1 + 3 / 4
    assert document["acceptance_histogram"] == [1, 1, 1, 0]
    assert document["acceptance_histogram_by_draft_length"] == {"0": [1], "1": [0, 1], "3": [1, 0, 1, 0]}
    assert document["accepted_by_source"]["cache"] == {
        "proposed": 3,
        "accepted": 1,
        "draft_acceptance_rate": 1 / 3,
    }
    assert document["accepted_by_source"]["model"]["accepted"] == 2
    assert document["reason_not_speculated"] is None
    json.dumps(document)


def test_emitted_tokens_are_rounds_plus_accepted():
    stats = fill(RequestStats())
    assert stats.rounds * stats.as_dict()["tokens_per_step"] == len(ROUNDS) + 3


def test_first_reason_stays():
    stats = RequestStats()
    stats.not_speculated("custom logit processor")
    stats.not_speculated("another")
    assert stats.as_dict()["reason_not_speculated"] == "custom logit processor"
    assert stats.as_dict()["mean_acceptance_length"] is None
    assert stats.as_dict()["acceptance_histogram"] == [0]


@pytest.mark.parametrize(("proposed", "accepted"), [(2, 3), (2, -1)])
def test_impossible_counts(proposed, accepted):
    with pytest.raises(ValueError, match="accepted"):
        RequestStats().add(RequestRound("r", proposed, accepted))


def test_tally_by_position():
    document = fill(Tally()).as_dict()
    # Position 1 was judged in three rounds and right in two; 2 in one of one; 3 in none of one.
    assert document["conditional_acceptance_by_position"] == [2 / 3, 1.0, 0.0]
    assert document["plain_share"] == 0.25


def test_merge_is_the_sum():
    one, two, both = SpecStats(), SpecStats(), SpecStats()
    for index, outcome in enumerate(ROUNDS):
        (one, two)[index % 2].add("code", outcome)
        both.add("code", outcome)
    two.add("chat", RequestRound("s", 5, 5))
    both.add("chat", RequestRound("s", 5, 5))
    for stats in (one, both):
        stats.end("code", "grammar")
    one.probes, both.probes = 2, 2
    one.merge(two)
    assert one.as_dict() == both.as_dict()
    assert one.as_dict()["programs"]["code"]["not_speculated"] == {"grammar": 1}
    json.dumps(one.as_dict())


def test_low_acceptance_warns_once():
    stats = SpecStats()
    bad = [RequestRound("r", 4, 0)]
    warnings = [stats.round(bad) for _ in range(400)]
    said = [warning for warning in warnings if warning]
    assert len(said) == 1
    assert "0.1" in said[0]
    assert "doctor" in said[0]
    assert warnings.index(said[0]) >= 99


def test_no_warning_while_plain_or_good():
    stats = SpecStats()
    assert not any(stats.round([RequestRound("r", 0, 0)]) for _ in range(300))
    assert not any(stats.round([RequestRound("r", 4, 1)]) for _ in range(300))
    for _ in range(3):  # low spells that are interrupted
        assert not any(stats.round([RequestRound("r", 4, 0)]) for _ in range(80))
        stats.round([RequestRound("r", 4, 4)])


def test_what_the_prefix_cache_held():
    one, other = SpecStats(), SpecStats()
    one.begin("chat", 10, (8, 6))
    other.begin("chat", 5, (0, 0))
    one.merge(other)
    assert one.as_dict()["prefix_cache"] == {"prompt_tokens": 15, "target_tokens": 8, "draft_tokens": 6}
    assert one.as_dict()["programs"]["chat"]["prefix_cache"]["draft_tokens"] == 6
    document = RequestStats(cached=(8, 6)).as_dict()
    assert (document["num_cached_tokens_target"], document["num_cached_tokens_draft"]) == (8, 6)


def test_merged_reasons_add_up():
    one, two = Tally(), Tally()
    one.not_speculated = {"asked": 2}
    two.not_speculated = {"asked": 1, "no room": 4}
    one.merge(two)
    assert one.not_speculated == {"asked": 3, "no room": 4}
    assert two.not_speculated == {"asked": 1, "no room": 4}
