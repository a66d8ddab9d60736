"""Hours of use in minutes: 3,000 mixed requests from 50 clients; the server stays whole and every answer is right."""

import asyncio
import json
import os
import random
from typing import Any

import httpx
import psutil
import pytest

from tests.engine.conftest import PROMPTS, Server

pytestmark = [pytest.mark.engine, pytest.mark.soak]
REQUESTS = int(os.environ.get("SGL_SPEC_SOAK_REQUESTS", "3000"))
CLIENTS = 50
KINDS = ("greedy", "greedy", "greedy", "warm", "regex", "three", "dropped", "aborted", "shared", "wrong")


class Client:
    """Draws requests of all kinds and checks each answer."""

    def __init__(self, server: Server, http: httpx.AsyncClient, solo: dict[str, list[int]], seed: int) -> None:
        self.server, self.http, self.solo = server, http, solo
        self.draw = random.Random(seed)
        self.counts: dict[str, int] = {}

    async def run(self, requests: int) -> None:
        for _ in range(requests):
            kind = self.draw.choice(KINDS)
            await getattr(self, f"_{kind}")()
            self.counts[kind] = self.counts.get(kind, 0) + 1

    def body(self, text: str, **params: Any) -> dict[str, Any]:
        draw = self.draw
        given = draw.choice(
            [{}, {"speculate": False}, {"controller": "fixed", "num_speculative_tokens": draw.randint(0, 5)}]
        )
        sampling = {"temperature": 0.0, "max_new_tokens": draw.randint(1, 24), **params}
        return {"text": text, "sampling_params": {**sampling, "custom_params": {"sgl_spec": given}}}

    async def ask(self, body: dict[str, Any]) -> Any:
        answer = await self.http.post(f"{self.server.url}/generate", json=body)
        assert answer.status_code == httpx.codes.OK, answer.text
        return answer.json()

    async def _greedy(self) -> None:
        prompt = self.draw.choice(PROMPTS)
        said = (await self.ask(self.body(prompt)))["output_ids"]
        assert said == self.solo[prompt][: len(said)]

    async def _warm(self) -> None:
        answer = await self.ask(self.body(self.draw.choice(PROMPTS), temperature=self.draw.choice([0.7, 1.3])))
        assert answer["meta_info"]["completion_tokens"] >= 1

    async def _regex(self) -> None:
        answer = await self.ask(self.body(PROMPTS[3], regex="[0-9]{2}", max_new_tokens=8))
        assert answer["text"].isdigit()

    async def _three(self) -> None:
        assert len(await self.ask(self.body(PROMPTS[19], n=3, temperature=1.0))) == 3

    async def _shared(self) -> None:
        text = PROMPTS[12] * 3 + str(self.draw.randint(0, 999))
        await self.ask(self.body(text))

    async def _wrong(self) -> None:
        body = self.body("Hi")
        body["sampling_params"]["custom_params"] = {"sgl_spec": {"num_speculative_tokens": -1}}
        answer = await self.http.post(f"{self.server.url}/generate", json=body)
        assert answer.status_code == httpx.codes.BAD_REQUEST

    async def _dropped(self) -> None:
        body = self.body(self.draw.choice(PROMPTS), max_new_tokens=48) | {"stream": True}
        left = self.draw.randint(1, 12)
        async with self.http.stream("POST", f"{self.server.url}/generate", json=body) as answer:
            async for line in answer.aiter_lines():
                left -= line.startswith("data: ")
                if not left:
                    break

    async def _aborted(self) -> None:
        rid = f"soak-{self.draw.getrandbits(60)}"
        body = self.body(self.draw.choice(PROMPTS), max_new_tokens=64, ignore_eos=True) | {"rid": rid}
        asked = asyncio.create_task(self.http.post(f"{self.server.url}/generate", json=body))
        await asyncio.sleep(self.draw.uniform(0.05, 1.0))
        await self.http.post(f"{self.server.url}/abort_request", json={"rid": rid})
        answer = await asked
        reason = answer.json().get("meta_info", {}).get("finish_reason", {}) if answer.is_success else {}
        assert not answer.is_success or reason["type"] in {"abort", "length", "stop"}


def resident_mb(group: int) -> float:
    processes = [p for p in psutil.process_iter() if p.is_running() and os.getpgid(p.pid) == group]
    return sum(process.memory_info().rss for process in processes) / 2**20


async def storm(server: Server, solo: dict[str, list[int]], requests: int) -> dict[str, int]:
    """Run all clients; return how many requests of each kind there were."""
    limits = httpx.Limits(max_connections=2 * CLIENTS)
    async with httpx.AsyncClient(timeout=600, limits=limits) as http:
        clients = [Client(server, http, solo, seed) for seed in range(CLIENTS)]
        await asyncio.gather(*(client.run(-(-requests // CLIENTS)) for client in clients))
    return {kind: sum(client.counts.get(kind, 0) for client in clients) for kind in set(KINDS)}


def idle_slots(server: Server) -> int:
    server.runtime.flush_cache()
    return server.runtime.server_state()["kv_slots_free"]


def test_three_thousand_mixed_requests(tight_server: Server) -> None:
    server = tight_server
    solo = {p: server.generate(p, {"speculate": False}, max_new_tokens=24)["output_ids"] for p in PROMPTS}
    free = idle_slots(server)
    asyncio.run(storm(server, solo, REQUESTS // 10))  # memory settles first
    settled = resident_mb(server.runtime.pid)
    counts = asyncio.run(storm(server, solo, REQUESTS))
    assert sum(counts.values()) >= REQUESTS, json.dumps(counts)
    assert idle_slots(server) == free
    assert resident_mb(server.runtime.pid) <= settled * 1.05
