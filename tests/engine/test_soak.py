"""Hours of use in minutes: 3,000 mixed requests from 50 clients; the server stays whole and every answer is right.

The first fifth meets a server with room for little more than one request, so that requests are retracted and come
back. Each server's memory is settled by further requests before it is measured.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import psutil
import pytest

from sgl_spec.models import demo_draft
from sgl_spec.orphans import alive
from sgl_spec.server_error import ServerError
from sgl_spec.sglang_plugin.running import SWEEP_ABOVE
from tests.engine.conftest import PROMPTS, Server, start

pytestmark = [pytest.mark.engine, pytest.mark.soak, pytest.mark.timeout(7200)]
REQUESTS = int(os.environ.get("SGL_SPEC_SOAK_REQUESTS", "3000"))
CLIENTS = 50
STORMS = 10  # the requests come in so many parts, with the memory looked at after each
ROOMY, TIGHT = 4096, 192  # KV slots; a request needs up to 160
MORE_MEMORY = 1.05
PATIENCE_S = 60  # for requests whose clients have gone
KINDS = ("greedy", "greedy", "greedy", "warm", "regex", "three", "dropped", "aborted", "shared", "forked", "wrong")
LONG = PROMPTS[12] * 2
FORKS = ["Then", " A cat", "1, 2,"]
DIGITS = {"regex": "[0-9]{2}", "max_new_tokens": 8}


class Client:
    """Draws requests of all kinds and checks each answer."""

    def __init__(self, server: Server, http: httpx.AsyncClient, solo: dict[str, list[int]], seed: int) -> None:
        self.server, self.http, self.solo = server, http, solo
        self.draw = random.Random(seed)
        self.counts: Counter[str] = Counter()

    async def run(self, requests: int) -> None:
        for _ in range(requests):
            kind = self.draw.choice(KINDS)
            await getattr(self, f"_{kind}")()
            self.counts[kind] += 1

    def body(self, text: str, **params: Any) -> dict[str, Any]:
        draw = self.draw
        given = draw.choice(
            [
                {},
                {"speculate": False},
                {"controller": "fixed", "num_speculative_tokens": draw.randint(0, 5)},
                {"controller": draw.choice(["threshold", "ema", "bandit"]), "program": "soak"},
                {"prediction": "Paris. It is the largest city", "cache": False},
            ]
        )
        sampling = {"temperature": 0.0, "max_new_tokens": draw.randint(1, 24), **params}
        return {"text": text, "sampling_params": {**sampling, "custom_params": {"sgl_spec": given}}}

    async def ask(self, body: dict[str, Any]) -> Any:
        answer = await self.http.post(f"{self.server.url}/generate", json=body)
        assert answer.status_code == httpx.codes.OK, answer.text
        said = answer.json()
        for one in said if isinstance(said, list) else [said]:
            assert one["meta_info"]["finish_reason"]["type"] in {"length", "stop"}, one
            self.counts["retractions"] += one["meta_info"]["num_retractions"]
        return said

    async def chunks(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        async with self.http.stream("POST", f"{self.server.url}/generate", json=body | {"stream": True}) as answer:
            assert answer.status_code == httpx.codes.OK
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))

    async def _exact(self, prompt: str, **params: Any) -> None:
        said = (await self.ask(self.body(prompt, **params)))["output_ids"]
        assert said == self.solo[prompt][: len(said)], prompt

    async def _greedy(self) -> None:
        await self._exact(self.draw.choice(PROMPTS))

    async def _forked(self) -> None:
        await asyncio.gather(*(self._exact(LONG + end) for end in FORKS))

    async def _warm(self) -> None:
        answer = await self.ask(self.body(self.draw.choice(PROMPTS), temperature=self.draw.choice([0.7, 1.3])))
        assert answer["meta_info"]["completion_tokens"] >= 1

    async def _regex(self) -> None:
        answer = await self.ask(self.body(PROMPTS[3], temperature=self.draw.choice([0.0, 1.0]), **DIGITS))
        assert len(answer["text"]) == 2
        assert answer["text"].isdigit()

    async def _three(self) -> None:
        assert len(await self.ask(self.body(PROMPTS[19], n=3, temperature=1.0))) == 3

    async def _shared(self) -> None:
        await self.ask(self.body(LONG + str(self.draw.randint(0, 999))))

    async def _wrong(self) -> None:
        body = self.body("Hi")
        body["sampling_params"]["custom_params"] = {"sgl_spec": {"num_speculative_tokens": -1}}
        answer = await self.http.post(f"{self.server.url}/generate", json=body)
        assert answer.status_code == httpx.codes.BAD_REQUEST

    async def _dropped(self) -> None:
        left = self.draw.randint(1, 12)
        async for _ in self.chunks(self.body(self.draw.choice(PROMPTS), max_new_tokens=48)):
            left -= 1
            if not left:
                break

    async def _aborted(self) -> None:
        rid = f"soak-{self.draw.getrandbits(60)}"
        prompt, left, ended = self.draw.choice(PROMPTS), self.draw.randint(1, 12), None
        async for chunk in self.chunks(self.body(prompt, max_new_tokens=64, ignore_eos=True) | {"rid": rid}):
            left -= 1
            if not left:
                await self.http.post(f"{self.server.url}/abort_request", json={"rid": rid})
            ended = chunk["meta_info"]["finish_reason"]
        assert ended is not None
        assert ended["type"] in {"abort", "length"}, ended


def processes(server: Server) -> list[psutil.Process]:
    main = psutil.Process(server.runtime.pid)
    return [main, *main.children(recursive=True)]


def resident_mb(server: Server) -> list[float]:
    """Of the main process, then of the others."""
    return [round(process.memory_info().rss / 2**20, 1) for process in processes(server)]


def storm(server: Server, solo: dict[str, list[int]], requests: int, first_seed: int) -> Counter[str]:
    """Run all clients; return how many requests of each kind there were, and how many retractions."""

    async def run() -> Counter[str]:
        # The server closes a connection after 5 idle seconds, and a request sent at that moment is lost.
        limits = httpx.Limits(max_connections=8 * CLIENTS, keepalive_expiry=1.0)
        async with httpx.AsyncClient(timeout=1200, limits=limits) as http:
            clients = [Client(server, http, solo, first_seed + n) for n in range(CLIENTS)]
            await asyncio.gather(*(client.run(-(-requests // CLIENTS)) for client in clients))
        return sum((client.counts for client in clients), Counter())

    try:
        return asyncio.run(run())
    except httpx.TransportError:
        pytest.fail(f"a connection broke; the server's processes: {processes(server)}; {server.runtime.log_tail()}")


def idle_slots(server: Server) -> int:
    """KV slots that are free once the last aborted request has left; SGLang refuses to flush before."""
    for _ in range(PATIENCE_S):
        try:
            server.runtime.flush_cache()
            break
        except ServerError:
            time.sleep(1.0)
    else:
        pytest.fail(f"still busy after {PATIENCE_S} s: {server.runtime.server_state()}")
    return server.runtime.server_state()["kv_slots_free"]


def weather(server: Server, solo: dict[str, list[int]], storms: int) -> int:
    """Run so many storms after one that settles the memory; return how many retractions there were."""
    free, retractions = idle_slots(server), 0
    storm(server, solo, min(2 * CLIENTS, REQUESTS // STORMS), first_seed=0)
    idle_slots(server)
    settled = resident_mb(server)
    for number in range(1, storms + 1):
        counts = storm(server, solo, REQUESTS // STORMS, first_seed=number * CLIENTS)
        retractions += counts["retractions"]
        left, mb = idle_slots(server), resident_mb(server)
        print(json.dumps({"slots": left, "storm": number, "settled_mb": settled, "mb": mb, **counts}))
        sys.stdout.flush()
        assert counts.total() - counts["retractions"] >= REQUESTS // STORMS
        assert left == free
        assert server.runtime.server_state()["running"] <= SWEEP_ABOVE + CLIENTS  # states of aborted ones are swept
        assert sum(mb) <= sum(settled) * MORE_MEMORY
    return retractions


def test_three_thousand_mixed_requests() -> None:
    solo: dict[str, list[int]] = {}
    for slots, storms in ((TIGHT, STORMS // 5), (ROOMY, STORMS - STORMS // 5)):
        settings = {"controller": "throughput", "num_speculative_tokens": 5, "max_total_tokens": slots}
        for server in start(demo_draft(), **settings):
            group = server.runtime.pid
            if not solo:
                prompts = [*PROMPTS, *(LONG + end for end in FORKS)]
                solo = {p: server.generate(p, {"speculate": False})["output_ids"] for p in prompts}
            retractions = weather(server, solo, storms)
            assert retractions > 0 or slots == ROOMY
        assert not alive(group)
