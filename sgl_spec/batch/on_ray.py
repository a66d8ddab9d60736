"""The rows of a batch on Ray Data, on this machine or a cluster. The driver alone writes the output."""

import functools
import importlib.util
import json
import logging
import math
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sgl_spec.batch.rows import Row
from sgl_spec.batch.runner import Done, RowRunner, run_rows
from sgl_spec.batch.settings import Settings
from sgl_spec.batch.usage import Usage
from sgl_spec.batch.work import find_work
from sgl_spec.errors import ConfigError, EngineError, SpecError

LOCAL = "local"
LOOPBACK = "127.0.0.1"
PACKAGE = "ray[data]==2.60.0"
ANSWERS_S = 10.0  # seconds that a cluster may take to answer at all
BLOCK = 8  # rows that a Ray task takes at most
GONE = "gone"  # key of a worker's last word instead of a finished row


@functools.cache
def _runner(settings: Settings) -> RowRunner:
    """Return this process's connections, made when its first rows come."""
    return RowRunner.connect(settings)


def run_block(block: dict[str, Any], settings: Settings, threads: int) -> dict[str, list[str]]:
    """Run a block of rows in a Ray task, `threads` at a time; rows and results are JSON texts in one column.

    What ends the whole batch is the last result, so that the rows before it are not lost.
    """
    rows = iter([Row(**json.loads(text)) for text in block["row"]])
    done: list[dict[str, Any]] = []
    try:
        for each in run_rows(rows, _runner(settings), threads):
            done.append({"record": each.record, "usage": asdict(each.usage)})
    except SpecError as error:
        done.append({GONE: str(error)})
    return {"done": [json.dumps(each) for each in done]}


def require_ray() -> None:
    """Raise ConfigError where Ray Data is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"ray needs the package ray, which is missing: pip install '{PACKAGE}', or leave --ray out.")


def run_on_ray(
    rows: Iterator[Row], settings: Settings, concurrency: int, address: str, stop: threading.Event
) -> Iterator[Done]:
    """Yield finished rows, block by block as Ray ends them; at most `concurrency` run at a time.

    Once `stop` is set, what Ray has given back is still yielded, then KeyboardInterrupt is raised. Raises
    ConfigError for an unknown program, EngineError without a server or where Ray itself fails.
    """
    find_work(settings.program)
    if address != LOCAL:
        _check_address(address)
        _use_token()
    import ray

    _start(address)
    try:
        for item in _dataset(rows, settings, concurrency).iter_rows():
            result = json.loads(item["done"])
            if GONE in result:
                raise EngineError(result[GONE])
            yield Done(result["record"], Usage(**result["usage"]))
            if stop.is_set():
                raise KeyboardInterrupt
    except ray.exceptions.RayError as error:
        raise EngineError(f"Ray gave up ({_last_line(error)}): repeat the command, finished rows are kept.") from error
    finally:
        ray.shutdown()


def _start(address: str) -> None:
    """Begin a Ray of our own on loopback, or join the cluster at `address`; raises EngineError, ConfigError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to Ray's makers unless asked for
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address == LOCAL:
            # One core, since rows wait for servers: Ray starts a process ahead for each core that it knows.
            ray.init(LOCAL, num_cpus=1, include_dashboard=False, _node_ip_address=LOOPBACK, **quiet)
        else:
            ray.init(address, **quiet)
    except Exception as error:  # Ray raises plain Exception too
        ray.shutdown()
        if address == LOCAL:
            raise EngineError(f"Ray did not start on this machine ({_last_line(error)}): leave --ray out.") from error
        raise ConfigError(_no_cluster(address, _last_line(error))) from error


def _check_address(address: str) -> None:
    """Raise ConfigError where nothing listens at HOST:PORT or ray://HOST:PORT: Ray would try for minutes."""
    where = urlsplit(address if "://" in address else f"//{address}")
    try:
        if where.port is not None:
            socket.create_connection((where.hostname or LOOPBACK, where.port), timeout=ANSWERS_S).close()
    except (OSError, ValueError) as error:
        raise ConfigError(_no_cluster(address, str(error))) from None


def _use_token() -> None:
    """Let Ray show the token that it keeps for its clusters: it asks the one to join before it looks for a token."""
    given = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if given or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _no_cluster(address: str, reason: str) -> str:
    return f"ray={address} is no Ray cluster that can be joined ({reason}): say 'local', 'auto' or HOST:PORT."


def _dataset(rows: Iterator[Row], settings: Settings, concurrency: int) -> Any:
    """Return the lazy dataset of results: a task per block, without a share of a core, since it only waits."""
    from ray.data import DataContext, TaskPoolStrategy, from_items

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    DataContext.get_current().enable_progress_bars = False  # the batch draws its own
    items = [{"row": json.dumps(asdict(row))} for row in rows]
    threads = min(BLOCK, concurrency)
    return from_items(items, override_num_blocks=math.ceil(len(items) / BLOCK)).map_batches(
        run_block,
        fn_kwargs={"settings": settings, "threads": threads},
        batch_size=None,
        compute=TaskPoolStrategy(size=concurrency // threads),
        num_cpus=0,
    )


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
