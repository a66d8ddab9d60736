"""A noisy copy of the target as draft: more of its guesses are accepted here than in SGLang's own STANDALONE."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from sgl_spec.models import cache_root, demo_target
from sgl_spec.orphans import stop_group
from sgl_spec.preflight import free_port
from sgl_spec.serve import CPU_DEFAULTS
from tests.engine import drafts
from tests.engine.conftest import PROMPTS, start

pytestmark = [pytest.mark.engine, pytest.mark.long]
K, TOKENS = 4, 48
START_S = 600.0


def noisy() -> Path:
    return drafts.noisy_draft(demo_target(), cache_root() / "tests" / "noisy-draft-12", 0.12)


@contextmanager
def stock(draft: Path) -> Iterator[str]:
    """SGLang's own algorithm on our CPU enablement; yields its address."""
    settings = {
        **CPU_DEFAULTS,
        "model_path": demo_target(),
        "port": free_port(),
        "log_level": "warning",
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": draft,
        "speculative_num_steps": K,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": K + 1,
        "disable_overlap_schedule": True,
        "max_running_requests": 8,
    }
    words: list[str] = []
    for name, value in settings.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sglang.launch_server", *words]
    with subprocess.Popen(command, env=environment, start_new_session=True) as server:
        try:
            url = f"http://127.0.0.1:{settings['port']}"
            deadline = time.monotonic() + START_S
            while not answers(url):
                assert server.poll() is None, f"the stock server ended with {server.returncode}"
                assert time.monotonic() < deadline, "the stock server does not answer"
                time.sleep(0.5)
            yield url
        finally:
            stop_group(server.pid)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=10).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def ask(url: str, prompt: str, options: dict[str, Any] | None) -> dict[str, Any]:
    sampling: dict[str, Any] = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    if options is not None:
        sampling["custom_params"] = {"sgl_spec": options}
    answer = httpx.post(f"{url}/generate", json={"text": prompt, "sampling_params": sampling}, timeout=300)
    answer.raise_for_status()
    return answer.json()


def test_a_noisy_copy_is_accepted_more_often_than_by_stock_standalone() -> None:
    """Accepted guesses per round, without the bonus token, over the same tokens of the same prompts."""
    draft = noisy()
    with stock(draft) as url:
        theirs = [ask(url, prompt, None) for prompt in PROMPTS]
    for server in start(draft, draft_cache=False, prediction=False, num_speculative_tokens=K):
        ours = [ask(server.url, prompt, {"controller": "fixed", "num_speculative_tokens": K}) for prompt in PROMPTS]
    assert [a["output_ids"] for a in ours] == [a["output_ids"] for a in theirs]
    rounds = sum(a["meta_info"]["spec_verify_ct"] for a in theirs)
    stock_rate = (len(PROMPTS) * (TOKENS - 1) - rounds) / rounds
    stats = [a["meta_info"]["sgl_spec"] for a in ours]
    our_rate = sum(s["num_accepted_draft_tokens"] for s in stats) / sum(s["num_spec_steps"] for s in stats)
    print(f"accepted per round: {our_rate:.3f}, stock STANDALONE {stock_rate:.3f}")
    assert our_rate > stock_rate
