"""The memory plan against running servers of three pairs, within a tenth."""

import random
from pathlib import Path

import httpx
import psutil
import pytest

from sgl_spec.advise.plan import GB, PlanRequest, make_plan
from sgl_spec.advise.resolve import resolve
from sgl_spec.models import cache_root, demo_draft, demo_target
from sgl_spec.runtime import Runtime
from tests.engine import drafts

pytestmark = [pytest.mark.engine, pytest.mark.long]
SLOTS, REQUESTS, K, CHUNK = 4096, 8, 5, 2048
PROMPT_TOKENS, NEW_TOKENS = 420, 80  # eight of them fill the pool


def foreign() -> Path:
    return drafts.foreign_draft(demo_target(), cache_root() / "tests" / "foreign-8k", merges=8000)


def planned(draft: Path) -> float:
    """GB of the plan for the settings of `measured`."""
    models = [resolve(str(path))[0].model_copy(update={"dtype": "float32"}) for path in (demo_target(), draft)]
    request = PlanRequest(
        target=models[0],
        draft=models[1],
        device="cpu",
        max_running_requests=REQUESTS,
        max_total_tokens=SLOTS,
        num_speculative_tokens=K,
        chunked_prefill_size=CHUNK,
    )
    return make_plan(request).total_gb


def measured(draft: Path) -> float:
    """GB that the server's processes hold (proportional set size) when its KV pool was filled."""
    draws = random.Random(0)
    prompts = [[draws.randrange(100, 8000) for _ in range(PROMPT_TOKENS)] for _ in range(REQUESTS)]
    sampling = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True, "temperature": 0.8}
    settings = {"max_total_tokens": SLOTS, "max_running_requests": REQUESTS, "chunked_prefill_size": CHUNK}
    with Runtime(str(demo_target()), str(draft), K, **settings) as runtime:
        body = {"input_ids": prompts, "sampling_params": sampling}
        httpx.post(f"{runtime.url}/generate", json=body, timeout=600).raise_for_status()
        assert runtime.pid is not None
        owner = psutil.Process(runtime.pid)
        return sum(process.memory_full_info().pss for process in [owner, *owner.children(recursive=True)]) / GB


@pytest.mark.parametrize("draft", [demo_draft, demo_target, foreign], ids=["demo", "itself", "another vocabulary"])
def test_the_plan_is_within_a_tenth_of_what_a_server_holds(draft) -> None:
    asked, held = planned(draft()), measured(draft())
    print(f"planned {asked:.3f} GB, held {held:.3f} GB")
    assert asked == pytest.approx(held, rel=0.1)
