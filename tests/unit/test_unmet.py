"""What a request asks for in vain is said in its answer, and nothing else is."""

from typing import Any

import pytest

from sgl_spec.config import RequestOptions, SpecConfig
from sgl_spec.unmet import warnings


@pytest.mark.parametrize(
    ("server", "request_options", "says"),
    [
        ({}, {"prediction": "text"}, None),
        ({"prediction": False}, {}, None),
        ({"prediction": False}, {"prediction": "text"}, "prediction is not used: the server was started with"),
        ({"prediction": False}, {"prediction": (1, 2)}, "prediction is not used"),
        ({"prediction": False}, {"prediction": "text", "speculate": False}, None),
        ({}, {"num_speculative_tokens": 30}, None),
        ({}, {"num_speculative_tokens": 5, "controller": "fixed"}, None),
        ({}, {"num_speculative_tokens": 6, "controller": "fixed"}, "=6 with controller=fixed is cut to 5"),
        ({"controller": "fixed"}, {"num_speculative_tokens": 6}, "started with num_speculative_tokens=5"),
        ({"controller": "fixed"}, {"num_speculative_tokens": 6, "controller": "ema"}, None),
        ({"controller": "fixed", "num_speculative_tokens": 8}, {"num_speculative_tokens": 8}, None),
    ],
)
def test_warnings(server: dict[str, Any], request_options: dict[str, Any], says: str | None) -> None:
    found = warnings(SpecConfig(model_path="t", **server), RequestOptions.parse(request_options))
    if says is None:
        assert found == []
    else:
        assert len(found) == 1
        assert says in found[0]


def test_both_at_once() -> None:
    options = RequestOptions(prediction="a", controller="fixed", num_speculative_tokens=9)
    assert len(warnings(SpecConfig(model_path="t", prediction=False), options)) == 2
