"""The servers of a batch: those at given addresses, or own ones while it lasts, behind a router if wanted."""

import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from sgl_spec.errors import ConfigError, EngineError
from sgl_spec.orphans import stop_group
from sgl_spec.preflight import free_port

LOOPBACK = "127.0.0.1"
ROUTER_PACKAGE = "sglang-router==0.3.2"
ROUTER_START_S = 120.0
LOG_LINES = 5
# The router's defaults keep equal prefixes on one server until 64 more requests wait there than elsewhere: a
# batch would run on one server only. These let a server be two ahead.
BALANCE = ("--balance-abs-threshold", "2", "--balance-rel-threshold", "1.1")


@contextmanager
def own_servers(count: int, model_path: str, draft_model_path: str | None) -> Iterator[list[str]]:
    """Start `count` servers with the same models one after the other, yield their addresses, stop them."""
    from sgl_spec.runtime import Runtime

    with ExitStack() as stack:
        yield [stack.enter_context(Runtime(model_path, draft_model_path)).url for _ in range(count)]


def require_router() -> None:
    """Raise ConfigError where sglang-router is not installed."""
    if importlib.util.find_spec("sglang_router") is None:
        raise ConfigError(
            f"router needs the package sglang-router, which is missing: pip install {ROUTER_PACKAGE}, "
            "or leave --router out and repeat --url."
        )


@contextmanager
def router(worker_urls: Sequence[str], timeout_s: float = ROUTER_START_S) -> Iterator[str]:
    """Run sglang-router over the servers and yield its address. Raises ConfigError, EngineError."""
    require_router()
    port = free_port(LOOPBACK)
    url = f"http://{LOOPBACK}:{port}"
    command = [
        sys.executable, "-m", "sglang_router.launch_router", "--host", LOOPBACK, "--port", str(port),
        "--worker-urls", *worker_urls, "--prometheus-port", str(free_port(LOOPBACK)), "--log-level", "warn",
        "--policy", "cache_aware", *BALANCE,
    ]  # fmt: skip
    with tempfile.NamedTemporaryFile(prefix="sgl-spec-router-", suffix=".log") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            _wait(process, url, Path(log.name), timeout_s)
            yield url
        finally:
            stop_group(process.pid)
            process.wait()


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not _serves(url):
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            what = f"ended with status {process.returncode}" if ended else f"did not answer within {timeout_s:.0f} s"
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
            raise EngineError(f"The router {what}; its log says:\n{tail}")
        time.sleep(0.2)


def _serves(url: str) -> bool:
    """Whether the router passes a request on to a worker."""
    try:
        return httpx.get(f"{url}/get_model_info", timeout=5.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
