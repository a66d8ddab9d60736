"""Advice from measurements on a real server: facts of the sweep that no clock can change."""

import httpx
import pytest

from sgl_spec.advise.measure import measure, policies
from sgl_spec.advise.recommend import recommend
from tests.engine.conftest import PROMPTS, Server

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.mark.parametrize("name", [pytest.param("bad_server", marks=pytest.mark.long), "self_server"])
def test_the_sweep_measures_what_it_says(name: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(name)
    with httpx.Client(base_url=server.url) as client:
        measured = measure(client, PROMPTS[:4], policies(), max_new_tokens=24)
    assert all(run.ids_equal_plain for run in measured)
    assert measured[0].proposed == 0
    fixed = [run for run in measured if run.policy.name.startswith("K=")]
    assert all(run.proposed > 0 for run in fixed)
    if name == "bad_server":
        assert all(run.accepted <= 0.1 * run.proposed for run in fixed)
    else:
        assert all(run.accepted >= 0.8 * run.proposed for run in fixed)
    assert recommend(measured, "draft").policy in {run.policy.name for run in measured}
