"""Advice from measurements: no worse than the best of the sweep, and "do not speculate" for a bad draft."""

import httpx
import pytest

from sgl_spec.advise.measure import measure, policies
from sgl_spec.advise.recommend import recommend
from tests.engine.conftest import PROMPTS, Server

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("name", ["bad_server", "self_server"])
def test_advice_is_within_five_percent_of_the_sweep(name: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(name)
    with httpx.Client(base_url=server.url) as client:
        measured = measure(client, PROMPTS[:4], policies(), max_new_tokens=24)
    advice = recommend(measured, "draft")
    plain = measured[0]
    speeds = {run.policy.name: run.tokens_per_s for run in measured}
    assert all(run.ids_equal_plain for run in measured)
    assert plain.proposed == 0
    assert speeds[advice.policy] >= 0.95 * max(speeds.values())
    if name == "bad_server":
        assert all(run.accepted <= 0.1 * run.proposed for run in measured)
        assert not advice.speculate
    else:
        assert all(run.acceptance_rate in (None, 1.0) or run.acceptance_rate > 0.8 for run in measured)
