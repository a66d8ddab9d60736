"""A part of the server dies: every waiting client gets an error soon, and nothing is left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from sgl_spec.errors import ConfigError
from sgl_spec.models import cache_root, demo_draft, demo_target
from sgl_spec.orphans import alive, stop_group
from sgl_spec.runtime import Runtime
from sgl_spec.serve import plan_launch
from sgl_spec.server_process import LAUNCH_TIMEOUT_S
from tests.engine import drafts
from tests.engine.conftest import up

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


def say(url: str) -> Any:
    body = {"text": "The capital of France is", "sampling_params": {"temperature": 0.0, "max_new_tokens": 12}}
    answer = httpx.post(f"{url}/generate", json=body, timeout=300)
    assert answer.status_code == httpx.codes.OK, answer.text
    return answer.json()["output_ids"]


def test_a_full_disk_for_the_log_and_a_second_server_on_the_port() -> None:
    """The log takes no byte, and still every request is answered; whoever wants the same port is refused at once."""
    launch = plan_launch({"model_path": str(demo_target()), "draft_model_path": str(demo_draft())})
    with Path("/dev/full").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "sgl_spec.sglang_plugin.server", *launch.arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=launch.environment,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + LAUNCH_TIMEOUT_S
        while not up(launch.url):
            assert server.poll() is None, f"the server ended with status {server.returncode}"
            assert time.monotonic() < deadline
            time.sleep(0.5)
        first = say(launch.url)
        with pytest.raises(ConfigError, match=r"port=\d+ on host=127.0.0.1 cannot be used"):
            Runtime(demo_target(), port=launch.server_args["port"])
        assert say(launch.url) == first
    finally:
        stop_group(server.pid)
        server.wait()
    assert not alive(server.pid)


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
