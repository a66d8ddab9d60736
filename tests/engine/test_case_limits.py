"""Public bug reports about context limits: a server of 512 tokens whose draft knows only 256."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sgl_spec.models import demo_target
from tests.engine.conftest import Server, start
from tests.engine.test_finish import PLAIN

pytestmark = [pytest.mark.engine, pytest.mark.long]
CONTEXT, DRAFT_CONTEXT = 512, 256
GUESS = {"controller": "fixed", "num_speculative_tokens": 8}


@pytest.fixture(scope="module")
def short_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The target drafts for itself, up to position 256; context 512."""
    draft = tmp_path_factory.mktemp("models") / "short-draft"
    shutil.copytree(demo_target(), draft)
    config_file = Path(draft) / "config.json"
    config = json.loads(config_file.read_text())
    config_file.write_text(json.dumps({**config, "max_position_embeddings": DRAFT_CONTEXT}))
    yield from start(draft, context_length=CONTEXT, draft_cache=False)


def ask(server: Server, length: int, new: int, options: dict) -> httpx.Response:
    body = {
        "input_ids": [(7 * i) % 2000 + 300 for i in range(length)],
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": new,
            "ignore_eos": True,
            "custom_params": {"sgl_spec": options},
        },
    }
    return httpx.post(f"{server.url}/generate", json=body, timeout=300)


@pytest.mark.parametrize("length", [CONTEXT - 7, CONTEXT - 3, CONTEXT - 2, CONTEXT - 1, CONTEXT])
@pytest.mark.parametrize("new", [1, 4, 16])
def test_b15_prompts_up_to_the_context_limit(short_server: Server, length: int, new: int) -> None:
    plain, guess = (ask(short_server, length, new, options) for options in (PLAIN, GUESS))
    assert plain.status_code == guess.status_code in {200, 400}
    if guess.status_code == httpx.codes.OK:
        assert guess.json()["output_ids"] == plain.json()["output_ids"]
        assert length + len(guess.json()["output_ids"]) <= CONTEXT
    assert ask(short_server, 8, 2, GUESS).status_code == httpx.codes.OK


def test_b15_text_up_to_the_context_limit(short_server: Server) -> None:
    for length in range(CONTEXT - 48, CONTEXT - 38, 2):  # slots are reserved in the last round of one of them
        plain, guess = (ask(short_server, length, CONTEXT - length, options) for options in (PLAIN, GUESS))
        assert plain.status_code == guess.status_code == httpx.codes.OK
        assert guess.json()["output_ids"] == plain.json()["output_ids"]
        assert length + len(guess.json()["output_ids"]) == CONTEXT - 2  # the most that SGLang allows


@pytest.mark.parametrize("length", [200, DRAFT_CONTEXT - 8, DRAFT_CONTEXT - 1, DRAFT_CONTEXT, 300])
def test_b17_b18_across_the_drafts_limit(short_server: Server, length: int) -> None:
    plain, guess = (ask(short_server, length, 80, options).json() for options in (PLAIN, GUESS))
    assert guess["output_ids"] == plain["output_ids"]
    stats = guess["meta_info"]["sgl_spec"]
    if length >= DRAFT_CONTEXT:
        assert stats["num_draft_tokens"] == 0
    else:
        assert stats["num_draft_tokens"] > 0
        assert stats["num_draft_tokens"] <= DRAFT_CONTEXT - length + 8
