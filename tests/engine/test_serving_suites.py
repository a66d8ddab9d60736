"""SGLang's own programs and load generator against our server."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from sglang.test import test_programs as suite

from sgl_spec.batch.cli import batch

pytestmark = [pytest.mark.engine, pytest.mark.long]

EXACT = [  # greedy from end to end
    suite.test_decode_json_regex,
    suite.test_tool_use,
    suite.test_regex,
    suite.test_stream_logprobs,
]
SAMPLED = [
    suite.test_few_shot_qa,
    suite.test_mt_bench,
    suite.test_decode_int,
    suite.test_decode_json,
    suite.test_expert_answer,
    suite.test_react,
    suite.test_parallel_decoding,
    suite.test_stream,
    suite.test_dtype_gen,
    suite.test_gen_min_new_tokens,
]
WRONG_TEXT = (AssertionError, json.JSONDecodeError, ValueError, KeyError)
"""What a small model's answer may raise in a program: a fact that it does not know, a JSON that is cut off."""


@pytest.fixture(scope="module")
def stock(plain_server: Any) -> Any:
    """SGLang's own backend on the same target without guesses."""
    backend = sgl.RuntimeEndpoint(plain_server.url)
    backend.endpoint = backend  # as the backend of SGLang's Runtime has
    return backend


def outcome(program: Any, backend: Any, *arguments: Any) -> str:
    """Return how a program of the suite ends on a backend."""
    sgl.set_default_backend(backend)
    try:
        program(*arguments)
    except WRONG_TEXT as error:
        return type(error).__name__
    return "passed"


@pytest.mark.parametrize("program", EXACT)
def test_greedy_programs_end_alike(program: Any, stock: Any, demo_server: Any) -> None:
    assert outcome(program, demo_server.runtime) == outcome(program, stock)


def test_forks_are_joined_where_the_stock_backend_waits_forever(demo_server: Any) -> None:
    assert outcome(suite.test_parallel_encoding, demo_server.runtime, False) == "passed"


@pytest.mark.parametrize("check", [False, True])
def test_select_ends_alike(check: bool, stock: Any, demo_server: Any) -> None:
    assert outcome(suite.test_select, demo_server.runtime, check) == outcome(suite.test_select, stock, check)


@pytest.mark.parametrize("program", SAMPLED)
def test_sampled_programs_end_in_a_way_that_stock_ones_do(program: Any, stock: Any, demo_server: Any) -> None:
    """Sampled outcomes differ between runs; ours must be among those of a few stock runs, or pass."""
    ours = outcome(program, demo_server.runtime)
    assert ours == "passed" or ours in {outcome(program, stock) for _ in range(3)}


@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_sglangs_load_generator_sees_no_error(demo_server: Any, tmp_path: Path, concurrency: int) -> None:
    out, prompts = tmp_path / "out.jsonl", max(4, 2 * concurrency)
    sizes = ["--random-input-len", "64", "--random-output-len", "16", "--random-range-ratio", "0.5"]
    done = subprocess.run(
        [sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang", "--base-url", demo_server.url,
         "--dataset-name", "random-ids", *sizes, "--num-prompts", str(prompts), "--max-concurrency", str(concurrency),
         "--output-file", str(out), "--disable-tqdm", "--output-details"],
        check=False, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(out.read_text().splitlines()[-1])
    assert result["completed"] == prompts
    assert not any(result["errors"])


def test_two_servers_behind_a_router_answer_like_one(demo_server: Any, plain_server: Any, tmp_path: Path) -> None:
    pytest.importorskip("sglang_router", reason="sglang-router is not installed")
    source, one, two = (tmp_path / name for name in ("in.jsonl", "one.jsonl", "two.jsonl"))
    rows = [{"id": i, "question": f"What is {i} plus {i}?", "max_tokens": 8} for i in range(12)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert batch(source, output=one, url=[demo_server.url]) == 0
    assert batch(source, output=two, url=[demo_server.url, plain_server.url], router=2) == 0
    assert two.read_bytes() == one.read_bytes()
