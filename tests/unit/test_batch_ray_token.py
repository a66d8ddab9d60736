import os

import pytest

from sgl_spec.batch.on_ray import _use_token


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "")  # so that what is set below is undone
    monkeypatch.delenv("RAY_AUTH_MODE")
    return tmp_path


def test_without_a_token_nothing_is_said():
    _use_token()
    assert "RAY_AUTH_MODE" not in os.environ


def test_rays_own_file_is_shown(home):
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("secret")
    _use_token()
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_a_given_token_is_shown_unless_the_user_said_otherwise(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    _use_token()
    assert os.environ["RAY_AUTH_MODE"] == "token"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    _use_token()
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
