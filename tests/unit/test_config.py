import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_spec.config import ENV, MAX_PREDICTION_CHARS, RequestOptions, SpecConfig, shown
from sgl_spec.errors import ConfigError


def config(**values):
    return SpecConfig.parse({"model_path": "target", **values})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_speculativ_tokens": 3}, ["num_speculativ_tokens", "did you mean 'num_speculative_tokens'"]),
        ({"num_speculative_tokens": 300}, ["num_speculative_tokens=300", "32"]),
        ({"num_speculative_tokens": -1}, ["num_speculative_tokens=-1", "0"]),
        ({"num_speculative_tokens": "4"}, ["num_speculative_tokens='4'", "integer"]),
        ({"num_speculative_tokens": 2.5}, ["num_speculative_tokens=2.5", "integer"]),
        ({"num_speculative_tokens": True}, ["num_speculative_tokens=True", "integer"]),
        (
            {"num_speculative_tokens": 12, "max_speculative_tokens": 3},
            ["12", "max_speculative_tokens=3", "raise"],
        ),
        ({"draft_model_path": ""}, ["draft_model_path", "empty", "leave it out"]),
        ({"draft_model_path": []}, ["draft_model_path", "empty"]),
        ({"draft_model_path": ["a", ""]}, ["draft_model_path", "empty"]),
        ({"draft_model_path": 3}, ["draft_model_path=3"]),
        ({"draft_confidence": 1.5}, ["draft_confidence=1.5"]),
        ({"draft_temperature": float("nan")}, ["draft_temperature=nan"]),
        ({"controller": "thruput"}, ["controller='thruput'", "throughput", "bandit"]),
        ({"draft_cache_mb": 0}, ["draft_cache_mb=0", "1"]),
        ({"cpu_weights": "int8"}, ["cpu_weights='int8'", "fp32"]),
    ],
)
def test_wrong_values_get_one_sentence(values, words):
    with pytest.raises(ConfigError) as caught:
        config(**values)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 300


def test_missing_target():
    with pytest.raises(ConfigError, match="model_path is missing"):
        SpecConfig.parse({})


@pytest.mark.parametrize("values", [None, [], "x", 3])
def test_not_an_object(values):
    with pytest.raises(ConfigError, match="named options"):
        RequestOptions.parse(values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, 10),
        ({"num_speculative_tokens": 12}, 12),
        ({"num_speculative_tokens": 0}, 0),
        ({"num_speculative_tokens": 3, "controller": "fixed"}, 3),
        ({"num_speculative_tokens": 3, "max_speculative_tokens": 4}, 4),
        ({"num_speculative_tokens": 0, "max_speculative_tokens": 4}, 4),
    ],
)
def test_k_max(values, expected):
    assert config(**values).k_max == expected


@pytest.mark.parametrize(("path", "paths"), [(None, ()), ("d", ("d",)), (["a", "b"], ("a", "b"))])
def test_draft_model_paths(path, paths):
    assert config(draft_model_path=path).draft_model_paths == paths


def test_travels_through_the_environment():
    sent = config(draft_model_path=["a", "b"], controller="bandit", draft_confidence=0.3, seed=2**62)
    environ = {}
    sent.to_env(environ)
    assert json.loads(environ[ENV])["controller"] == "bandit"
    assert SpecConfig.from_env(environ) == sent
    assert SpecConfig.from_env({}) is None


@pytest.mark.parametrize("text", ["{", "[]", '{"model_path": 3}', '{"model_path": "x", "y": 1}'])
def test_a_broken_environment_is_an_error(text):
    with pytest.raises(ConfigError):
        SpecConfig.from_env({ENV: text})


def test_frozen():
    with pytest.raises(ValueError, match="frozen"):
        config().seed = 3


def test_every_knob_says_what_it_is():
    for model in (SpecConfig, RequestOptions):
        for name, field in model.model_fields.items():
            assert field.description, name
            assert field.description.endswith("."), name


def test_request_options():
    options = RequestOptions.parse(
        {
            "speculate": False,
            "num_speculative_tokens": 8,
            "program": "code",
            "prediction": [1, 2],
            "cache": False,
        }
    )
    assert options.prediction == (1, 2)
    assert not options.speculate
    assert RequestOptions.parse({}).cache


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"speculat": True}, ["speculate"]),
        ({"prediction": "x" * (MAX_PREDICTION_CHARS + 1)}, ["prediction", str(MAX_PREDICTION_CHARS)]),
        ({"prediction": [1] * 300_000}, ["prediction", "300000"]),
        ({"prediction": [1, -1]}, ["prediction", "token ids"]),
        ({"prediction": [1, True]}, ["prediction", "token ids"]),
        ({"prediction": ["a"]}, ["prediction", "token ids"]),
        ({"prediction": {"type": "content"}}, ["prediction"]),
        ({"x" * 1_000_000: 1}, ["no option"]),
        ({"program": "x" * 1_000_000}, ["program", "128"]),
        ({"speculate": 1}, ["speculate=1"]),
        ({"num_speculative_tokens": 10**6}, ["num_speculative_tokens"]),
    ],
)
def test_wrong_request_options(values, words):
    with pytest.raises(ConfigError) as caught:
        RequestOptions.parse(values)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert len(message) < 300


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*RequestOptions.model_fields]) | st.text(max_size=20), json_values))
def test_any_json_is_taken_or_refused_in_one_sentence(values):
    try:
        options = RequestOptions.parse(values)
    except ConfigError as error:
        message = str(error)
    else:
        message = "taken"
        assert RequestOptions.parse(options.model_dump()) == options
    assert 0 < len(message) < 500


@given(json_values)
def test_shown_is_short(value):
    assert len(shown(value)) <= 60
