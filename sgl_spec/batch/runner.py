"""The loop of a batch: rows in, records out, a bounded number at a time."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter
from tenacity.wait import wait_base

from sgl_spec.batch.endpoint import CountingEndpoint, is_connection, is_transient
from sgl_spec.batch.pool import Pool
from sgl_spec.batch.rows import Row
from sgl_spec.batch.settings import Settings
from sgl_spec.batch.usage import Usage
from sgl_spec.batch.work import Outcome, RowError, Work, find_work
from sgl_spec.errors import EngineError

WAIT: wait_base = wait_exponential_jitter(multiplier=0.5, max=20.0)
AHEAD = 2  # rows handed to the threads per running one, so that none waits for a disk write


class ServersGoneError(EngineError):
    """No server of the batch answers any more: the batch stops, and its rows stay undone for the next run."""


@dataclass(frozen=True, slots=True)
class Done:
    """A finished row: its record, and what this run used for it."""

    record: dict[str, Any]
    usage: Usage


@dataclass(frozen=True)
class RowRunner:
    """Runs one row: retries what may pass, turns what will not into an error record.

    `retries` are further attempts after a failed connection or a 5xx answer; anything else is final at once.
    """

    work: Work
    pool: Pool[Any]
    retries: int = 4
    stats: bool = False

    @classmethod
    def connect(cls, settings: Settings) -> Self:
        """Connect to the servers; raises ConfigError for an unknown program, EngineError without a server."""
        work = find_work(settings.program)
        servers = [CountingEndpoint(url, settings.api_key) for url in settings.urls]
        return cls(work, Pool(servers), settings.retries, settings.stats)

    def __call__(self, row: Row) -> Done:
        """Return the row's record; raises ServersGoneError."""
        if row.problem is not None:
            return Done(record_of(row, error=error_of("invalid_row", row.problem, 0)), Usage())
        last: list[Any] = [None]
        retrying = Retrying(
            retry=retry_if_exception(is_transient),
            stop=stop_after_attempt(self.retries + 1),
            wait=WAIT,
            retry_error_callback=_result,
        )
        attempts = 0
        try:
            for attempt in retrying:
                attempts = attempt.retry_state.attempt_number
                with attempt:
                    return self._attempt(row, last)
        except RowError as error:
            return Done(record_of(row, error=error_of("invalid_row", str(error), attempts)), Usage())
        except Exception as error:  # a row's failure, whatever it is, is its record
            if is_transient(error) and not any(answers(server) for server in self.pool.servers):
                raise ServersGoneError(
                    f"No server answers any more ({error}): start one and repeat the command, finished rows are kept."
                ) from error
            return Done(record_of(row, error=error_of(type(error).__name__, str(error), attempts)), Usage())
        raise AssertionError("tenacity ends with a result or an error")

    def _attempt(self, row: Row, last: list[Any]) -> Done:
        with self.pool.take(avoid=last[0]) as server:
            last[0] = server
            try:
                outcome = self.work(row, server)
            except Exception as error:
                if is_connection(error):
                    self.pool.rest(server)
                raise
        return Done(record_of(row, outcome, stats=self.stats), outcome.usage)


def _result(state: RetryCallState) -> Any:
    """Raise the last attempt's own error."""
    assert state.outcome is not None
    return state.outcome.result()


def record_of(
    row: Row, outcome: Outcome | None = None, error: dict[str, Any] | None = None, stats: bool = False
) -> dict[str, Any]:
    """Return a row's record. Without `stats` nothing in it depends on time: greedy batches repeat exactly."""
    record: dict[str, Any] = {"index": row.index, "digest": row.digest, "id": row.id}
    if row.is_openai:
        record |= {"custom_id": row.id, "response": None}
    if outcome is None:
        return {**record, "output": None, "error": error}
    usage = {
        "prompt_tokens": outcome.usage.prompt_tokens,
        "completion_tokens": outcome.usage.completion_tokens,
    }
    record |= {"output": outcome.output, "usage": usage, "error": None, **outcome.extra}
    if stats:
        record["sgl_spec"] = outcome.usage.as_dict()
    json.dumps(record, allow_nan=False)  # a program's value that is no JSON is this row's error, not the batch's
    return record


def error_of(kind: str, message: str, attempts: int) -> dict[str, Any]:
    """Return the error field of a record."""
    return {"type": kind, "message": message, "attempts": attempts}


def answers(server: Any) -> bool:
    """Whether a server says that it is healthy."""
    try:
        return httpx.get(f"{server.base_url}/health", timeout=10.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def run_rows(
    rows: Iterator[Row], run: Callable[[Row], Done], concurrency: int, stop: threading.Event | None = None
) -> Iterator[Done]:
    """Yield finished rows as they end.

    Once `stop` is set, or no server is left, no further row begins; what runs is still yielded, then
    KeyboardInterrupt or ServersGoneError is raised.
    """
    gone: ServersGoneError | None = None
    running: set[Future[Done]] = set()
    with ThreadPoolExecutor(concurrency, thread_name_prefix="row") as threads:
        try:
            while True:
                ending = gone is not None or (stop is not None and stop.is_set())
                if ending:
                    running = {future for future in running if not future.cancel()}
                else:
                    free = concurrency * AHEAD - len(running)
                    running |= {threads.submit(run, row) for row in islice(rows, free)}
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    try:
                        yield future.result()
                    except ServersGoneError as error:
                        gone = gone or error
        finally:
            for future in running:
                future.cancel()
    if gone is not None:
        raise gone
    if stop is not None and stop.is_set():
        raise KeyboardInterrupt
