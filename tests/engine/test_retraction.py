"""Requests that are put back for want of KV say what they say alone, penalties included."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.engine.conftest import PROMPTS, Server, demo_draft, start

pytestmark = [pytest.mark.engine, pytest.mark.long]
PENALTIES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.2},
    {"frequency_penalty": 0.8, "presence_penalty": 0.4},
    {"min_new_tokens": 40, "repetition_penalty": 1.1},
]


@pytest.fixture(scope="module")
def retracting_server() -> Iterator[Server]:
    """The demo pair, whose scheduler puts requests back in every fifth round that has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_TEST_RETRACT", "1")
        patch.setenv("SGLANG_TEST_RETRACT_INTERVAL", "5")
        yield from start(demo_draft(), controller="throughput", num_speculative_tokens=5)


def test_penalties_outlive_a_retraction(retracting_server: Server) -> None:
    alone, together = asyncio.run(said(retracting_server))
    retracted = [number for number, one in enumerate(together) if one["meta_info"]["num_retractions"]]
    assert len(retracted) >= len(PENALTIES)
    for number, (one, other) in enumerate(zip(alone, together, strict=True)):
        assert other["output_ids"] == one["output_ids"], (number, other["meta_info"]["num_retractions"])


async def said(server: Server) -> tuple[list[Any], list[Any]]:
    """Answers to the same requests one by one, and three at once."""
    bodies = []
    for number, prompt in enumerate(PROMPTS[:12]):
        options = {"speculate": number % 2 > 0, "cache": False}
        sampling = {"temperature": 0.0, "max_new_tokens": 60, **PENALTIES[number % 3]}
        bodies.append({"text": prompt, "sampling_params": {**sampling, "custom_params": {"sgl_spec": options}}})
    async with httpx.AsyncClient(timeout=600) as http:

        async def ask(body: dict[str, Any]) -> Any:
            answer = await http.post(f"{server.url}/generate", json=body)
            assert answer.status_code == httpx.codes.OK, answer.text
            return answer.json()

        alone = [await ask(body) for body in bodies]
        together = []
        for group in range(0, len(bodies), 3):  # in each group one is put back again and again
            together += await asyncio.gather(*map(ask, bodies[group : group + 3]))
        return alone, together
