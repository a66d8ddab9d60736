"""A part of the server dies: every waiting client gets an error soon, and nothing is left behind."""

import os
import signal
import threading
import time
from typing import Any

import httpx
import psutil
import pytest

from sgl_spec.models import cache_root, demo_target
from sgl_spec.orphans import alive
from sgl_spec.runtime import Runtime
from tests.engine import drafts

pytestmark = [pytest.mark.engine, pytest.mark.long]
END_S = 10.0


def wait_for_answer(url: str, outcome: dict[int, Any], number: int) -> None:
    body = {"text": "Count:", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}
    try:
        outcome[number] = httpx.post(f"{url}/generate", json=body, timeout=600).status_code
    except httpx.HTTPError as error:
        outcome[number] = error


def part_of(pid: int, name: str) -> psutil.Process:
    found = [p for p in psutil.Process(pid).children(recursive=True) if name in " ".join(p.cmdline())]
    assert len(found) == 1, [p.cmdline() for p in found]
    return found[0]


@pytest.mark.parametrize("part", ["sglang::scheduler", "sglang::detokenizer"])
def test_clients_of_a_dead_engine_get_an_error(part: str) -> None:
    with Runtime(demo_target()) as runtime:
        group = runtime.pid
        assert group is not None
        outcome: dict[int, Any] = {}
        clients = [threading.Thread(target=wait_for_answer, args=(runtime.url, outcome, i)) for i in range(4)]
        for client in clients:
            client.start()
        time.sleep(3)
        os.kill(part_of(group, part).pid, signal.SIGKILL)
        killed = time.monotonic()
        for client in clients:
            client.join(timeout=END_S)
        assert len(outcome) == len(clients), f"{part} died {time.monotonic() - killed:.0f} s ago and clients still wait"
        assert not any(answer == httpx.codes.OK for answer in outcome.values())
        deadline = killed + END_S
        while alive(group) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not alive(group)


def test_a_draft_with_nan_weights_changes_no_token() -> None:
    """Its guesses are worth nothing, and the output is the target's."""
    draft = drafts.nan_draft(demo_target(), cache_root() / "tests" / "nan-draft")
    settings = {"controller": "fixed", "num_speculative_tokens": 4, "draft_cache": False}
    with Runtime(demo_target(), str(draft), **settings) as runtime:
        for temperature in (0.0, 1.0):
            said = []
            for speculate in (False, True):
                sampling = {
                    "temperature": temperature,
                    "sampling_seed": 5,
                    "max_new_tokens": 24,
                    "custom_params": {"sgl_spec": {"speculate": speculate}},
                }
                body = {"text": "The capital of France is", "sampling_params": sampling}
                answer = httpx.post(f"{runtime.url}/generate", json=body, timeout=300)
                assert answer.status_code == httpx.codes.OK, answer.text
                said.append(answer.json())
            assert all(one["meta_info"]["completion_tokens"] == 24 for one in said)
            if temperature == 0:
                assert said[0]["output_ids"] == said[1]["output_ids"]
            assert said[1]["meta_info"]["sgl_spec"]["num_accepted_draft_tokens"] <= 1
