"""Requests that steer a server rather than ask it something: aborts, pauses, sessions, flushes, new weights."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from sgl_spec.models import demo_draft
from tests.engine.conftest import PROMPTS, Server
from tests.engine.test_cases import empty, fixed
from tests.engine.test_finish import PLAIN

pytestmark = [pytest.mark.engine, pytest.mark.long]
STORY = PROMPTS[2]
LONG_PROMPT = "The rules of the library are read out at the door. " * 60
UNSUPPORTED: list[dict[str, Any]] = [
    {"lora_path": "nowhere"},
    {"return_hidden_states": True},
    {"input_embeds": [[0.0] * 8] * 3, "text": None},
    {"image_data": "data:image/png;base64,AAAA"},
    {"session_params": {"id": "no such session"}},
    {"data_parallel_rank": 3},
    {"bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": 1},
    {"priority": 5},
    {"extra_key": "mine"},
    {"input_ids": [10**6], "text": None},
    {"input_ids": [-1, 300], "text": None},
    {"input_ids": [300, 301], "text": None},
    {"custom_logit_processor": "nonsense"},
    {"positional_embed_overrides": {}},
    {"logprob_start_len": 10**6, "return_logprob": True},
    {"top_logprobs_num": 10**5, "return_logprob": True},
    {"token_ids_logprob": [10**9], "return_logprob": True},
    {"token_ids_logprob": [-5], "return_logprob": True},
    {"rid": ["one", "two"]},
    {"return_logprob": [True, False]},
    {"top_logprobs_num": [1], "return_logprob": True},
]
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/encode", {"text": "Hi"}),
    ("/classify", {"text": "Hi"}),
    ("/v1/embeddings", {"model": "default", "input": "Hi"}),
    ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ("/v1/score", {"query": "Is it?", "items": [" yes", " no"], "label_token_ids": [260, 284], "model": "default"}),
    ("/v1/responses", {"model": "default", "input": "Say OK.", "max_output_tokens": 8}),
    ("/load_lora_adapter", {"lora_name": "a", "lora_path": "nowhere"}),
    ("/unload_lora_adapter", {"lora_name": "a"}),
    ("/release_memory_occupation", {}),
    ("/resume_memory_occupation", {}),
    ("/init_weights_update_group", {"master_address": "x", "master_port": 1, "rank_offset": 1, "world_size": 2}),
    ("/update_weights_from_distributed", {"names": ["lm_head.weight"], "dtypes": ["float32"], "shapes": [[1]]}),
    ("/update_weights_from_tensor", {"serialized_named_tensors": ["AAAA"]}),
    ("/get_weights_by_name", {"name": "model.norm.weight", "truncate_size": 4}),
    ("/get_weights_by_name", {"name": "model.layers.0.self_attn.q_proj.weight", "truncate_size": 4}),
    ("/weights_checker", {"action": "checksum"}),
    ("/slow_down", {"forward_sleep_time": None}),
    ("/set_internal_state", {"server_args": {}}),
    ("/v1/tokenize", {"model": "default", "prompt": "Hi"}),
    ("/v1/detokenize", {"model": "default", "tokens": [260, 284]}),
]


def post(server: Server, path: str, body: Any = None, timeout: float = 300) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=timeout)


def say(server: Server, text: str, rid: str, tokens: int, given: dict[str, Any]) -> httpx.Response:
    sampling = {
        "temperature": 0,
        "max_new_tokens": tokens,
        "ignore_eos": True,
        "custom_params": {"sgl_spec": given},
    }
    return post(server, "/generate", {"text": text, "rid": rid, "sampling_params": sampling})


@pytest.fixture(params=["self_server", "bad_server"])
def server(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(request.param)


@pytest.fixture
def expected(server: Server) -> list[int]:
    """What the server says without guesses before anything happens to it."""
    return server.generate(STORY, PLAIN, max_new_tokens=60, ignore_eos=True)["output_ids"]


def unhurt(server: Server, expected: list[int]) -> None:
    for given in (PLAIN, fixed(8)):
        assert server.generate(STORY, given, max_new_tokens=60, ignore_eos=True)["output_ids"] == expected


def free_slots(server: Server) -> int:
    empty(server)
    return server.runtime.server_state()["kv_slots_free"]


def begin(pool: ThreadPoolExecutor, server: Server, count: int, tokens: int, text: str = STORY) -> dict[str, Future]:
    """Ask `count` times, each with another number of guesses; returns what each request's id will be answered."""
    mark = time.monotonic_ns()
    return {
        f"{mark}-{i}": pool.submit(say, server, text, f"{mark}-{i}", tokens, fixed(1 + 2 * i)) for i in range(count)
    }


@pytest.mark.parametrize(("wait", "everyone"), [(0.0, True), (0.3, True), (0.05, False), (1.0, False)])
def test_aborts_at_any_time(server: Server, expected: list[int], wait: float, everyone: bool) -> None:
    """In the queue, in a prefill in chunks, between rounds: answered as aborted or whole, and no slot is lost."""
    before = free_slots(server)
    with ThreadPoolExecutor(8) as pool:
        waiting = begin(pool, server, 4, 120, LONG_PROMPT)
        beside = pool.submit(say, server, STORY, "beside", 60, fixed(8))
        time.sleep(wait)
        for rid in [""] if everyone else waiting:
            answer = post(server, "/abort_request", {"rid": rid, "abort_all": everyone})
            assert answer.status_code == httpx.codes.OK
        for job in waiting.values():
            assert job.result().status_code < 500 or "abort" in job.result().text.lower()
        if not everyone:
            assert beside.result().json()["output_ids"] == expected
    assert free_slots(server) == before
    unhurt(server, expected)


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
def test_pauses(server: Server, expected: list[int], mode: str) -> None:
    before = free_slots(server)
    with ThreadPoolExecutor(4) as pool:
        waiting = begin(pool, server, 4, 60)
        time.sleep(0.3)
        assert post(server, "/pause_generation", {"mode": mode}).status_code == httpx.codes.OK
        time.sleep(0.5)
        assert post(server, "/continue_generation", {}).status_code == httpx.codes.OK
        for answer in [job.result() for job in waiting.values()]:
            if mode != "abort":
                assert answer.json()["output_ids"] == expected
    assert free_slots(server) == before
    unhurt(server, expected)


def test_a_flush_under_load_is_refused_and_disturbs_nobody(server: Server, expected: list[int]) -> None:
    with ThreadPoolExecutor(4) as pool:
        waiting = begin(pool, server, 4, 60)
        statuses = set()
        while not all(job.done() for job in waiting.values()):
            statuses.add(post(server, "/flush_cache").status_code)
            time.sleep(0.05)
        assert all(job.result().json()["output_ids"] == expected for job in waiting.values())
    assert statuses <= {httpx.codes.OK, httpx.codes.BAD_REQUEST}


def test_a_session_goes_on_where_it_stopped(server: Server) -> None:
    """Each turn of a session equals the request that holds its whole text."""
    answer = post(server, "/open_session", {"capacity_of_str_len": 1000})
    assert answer.status_code == httpx.codes.OK
    session, rid, ids = answer.json(), None, list(range(300, 330))
    new = ids
    for turn in range(4):
        given = fixed(8) if turn % 2 else fixed(3)
        sampling = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True, "custom_params": {"sgl_spec": given}}
        params = {"id": session, "rid": rid}
        said = post(
            server, "/generate", {"input_ids": new, "session_params": params, "sampling_params": sampling}
        ).json()
        whole = {**sampling, "custom_params": {"sgl_spec": PLAIN}}
        alone = post(server, "/generate", {"input_ids": ids, "sampling_params": whole}).json()
        assert said["output_ids"] == alone["output_ids"]
        rid, new = said["meta_info"]["id"], list(range(500 + 9 * turn, 507 + 9 * turn))
        ids = [*ids, *said["output_ids"], *new]
    assert post(server, "/close_session", {"session_id": session}).status_code == httpx.codes.OK


@pytest.mark.parametrize("more", UNSUPPORTED, ids=lambda more: next(iter(more)))
def test_options_of_other_servers(server: Server, more: dict[str, Any]) -> None:
    """Answered, or refused with a sentence; the same with and without guesses."""
    statuses = []
    for given in (PLAIN, fixed(8)):
        sampling = {"temperature": 0, "max_new_tokens": 6, "custom_params": {"sgl_spec": given}}
        answer = post(server, "/generate", {"text": STORY, "sampling_params": sampling, **more}, timeout=60)
        statuses.append(answer.status_code)
        assert answer.status_code < 500, answer.text
    assert statuses[0] == statuses[1]
    assert server.generate("Hi", fixed(8), max_new_tokens=2)["meta_info"]["completion_tokens"] == 2


@pytest.mark.parametrize(("path", "body"), ROUTES, ids=lambda value: value if isinstance(value, str) else "")
def test_routes_beside_generate(server: Server, expected: list[int], path: str, body: dict[str, Any]) -> None:
    answer = post(server, path, body, timeout=60)
    assert answer.status_code < 500, answer.text
    unhurt(server, expected)


def test_new_weights_are_refused(server: Server, expected: list[int]) -> None:
    """The weights are packed at the start: half an exchange would be another model, and nobody would notice."""
    answer = post(server, "/update_weights_from_disk", {"model_path": str(demo_draft())})
    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert "restart" in answer.text
    unhurt(server, expected)


def test_a_client_that_leaves_in_the_middle_of_a_stream(server: Server, expected: list[int]) -> None:
    before = free_slots(server)

    def leave(after: int) -> None:
        sampling = {"max_new_tokens": 400, "ignore_eos": True, "n": 2, "custom_params": {"sgl_spec": fixed(8)}}
        body = {"text": STORY, "sampling_params": sampling, "stream": True}
        with httpx.stream("POST", f"{server.url}/generate", json=body, timeout=60) as answer:
            for number, _ in enumerate(answer.iter_lines()):
                if number >= after:
                    return

    threads = [threading.Thread(target=leave, args=(after,)) for after in (0, 1, 5, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    deadline = time.monotonic() + 60
    while server.runtime.server_state()["running"] and time.monotonic() < deadline:
        time.sleep(0.2)
    assert free_slots(server) == before
    unhurt(server, expected)
