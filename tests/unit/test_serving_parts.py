"""Counters, the slowest requests, and who may see the page: the parts of serving that need no server."""

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from sgl_spec.control.base import RequestRound
from sgl_spec.sglang_plugin.metrics import Counters
from sgl_spec.sglang_plugin.slowest import Slowest
from sgl_spec.stats import SpecStats


@pytest.fixture
def samples() -> Any:
    """Return the values of our samples by name and labels, for a model name of this test's own."""
    prometheus = pytest.importorskip("prometheus_client")
    model = uuid.uuid4().hex

    def read() -> dict[tuple[str, str], float]:
        return {
            (sample.name, sample.labels.get("source", "")): sample.value
            for family in prometheus.REGISTRY.collect()
            for sample in family.samples
            if sample.labels.get("model_name") == model and sample.name.endswith("_total")
        }

    return SimpleNamespace(model=model, read=read)


def test_counters_equal_the_statistics(samples: Any) -> None:
    counters, stats = Counters(samples.model), SpecStats()
    for _ in range(2):
        stats.add("code", RequestRound("a", 3, 2, ("cache", "cache", "model")))
        stats.add("code", RequestRound("a", 0, 0, ()))
        stats.end("code")
        counters.update(stats.as_dict())
        counters.update(stats.as_dict())
    assert samples.read() == {
        ("sgl_spec_proposed_tokens_total", "cache"): 4,
        ("sgl_spec_proposed_tokens_total", "model"): 2,
        ("sgl_spec_accepted_tokens_total", "cache"): 4,
        ("sgl_spec_accepted_tokens_total", "model"): 0,
        ("sgl_spec_rounds_total", ""): 4,
        ("sgl_spec_requests_total", ""): 2,
    }


def test_the_slowest_are_kept_in_order() -> None:
    slowest = Slowest(kept=3)
    for seconds in (1.0, 5.0, 3.0, 0.5, 3.0, 4.0):
        slowest.add(seconds, {"rid": "x"})
    assert [facts["seconds"] for facts in slowest.as_list()] == [5.0, 4.0, 3.0]


def test_the_page_needs_no_key_and_its_figures_do() -> None:
    http_server = pytest.importorskip("sgl_spec.sglang_plugin.http_server")
    original = lambda *, method, path, api_key: ("asked", path)  # noqa: E731
    decide = http_server.page_needs_no_key(original, lambda allowed: ("open", allowed))
    for path in ("/sgl-spec/", "/sgl-spec"):
        assert decide(method="GET", path=path, api_key="k") == ("open", True)
    for path in ("/sgl-spec/stats", "/sgl-spec/x", "/generate"):
        assert decide(method="GET", path=path, api_key="k") == ("asked", path)
