"""One engine for one benchmark: started, warmed up, and stopped."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from sgl_spec.bench.ab import PLAIN
from sgl_spec.bench.load import Ask, Client
from sgl_spec.errors import ConfigError
from sgl_spec.upstream import installed_version

WARM_TEXT = "One two three four five six seven eight nine ten. One two three four five six"
LONGEST = 10  # fixed K of a request goes up to the server's; the default policy does not look at it


class Engine(NamedTuple):
    """A running server, how to ask it, and what it runs."""

    client: Client
    target: str
    threads: int
    runtime: Any


def pair(target: Path | None, draft: Path | None) -> tuple[str, str]:
    """The models to measure: both given, or the demo pair."""
    if target is None and draft is None:
        from sgl_spec.models import fetch_demo

        found = fetch_demo()
        return str(found[0]), str(found[1])
    if target is None or draft is None:
        given, other = ("target", "draft") if draft is None else ("draft", "target")
        raise ConfigError(f"--{given} is given without --{other}: name both models, or none for the demo pair.")
    return str(target), str(draft)


_kept: dict[str, Engine] = {}  # by what they were started with, inside `engines_kept`
_keeping: ContextVar[ExitStack | None] = ContextVar("sgl_spec_engines_kept", default=None)


@contextmanager
def engines_kept() -> Iterator[None]:
    """In this block an engine stays up until the end, and a second start of the same one returns it."""
    with ExitStack() as stack:
        token = _keeping.set(stack)
        try:
            yield
        finally:
            _keeping.reset(token)
            _kept.clear()


@contextmanager
def running(target: str, draft: str | None, out: Console, **server_args: Any) -> Iterator[Engine]:
    """A started server that has answered some unmeasured requests: nothing is compiled while times are taken."""
    stack = _keeping.get()
    if stack is None:
        with _started(target, draft, out, server_args) as engine:
            yield engine
        return
    name = repr((target, draft, sorted(server_args.items())))
    if name not in _kept:
        _kept[name] = stack.enter_context(_started(target, draft, out, server_args))
    yield _kept[name]


@contextmanager
def _started(target: str, draft: str | None, out: Console, server_args: dict[str, Any]) -> Iterator[Engine]:
    from sgl_spec.runtime import Runtime

    started = time.monotonic()
    with Runtime(target, draft, **{"num_speculative_tokens": LONGEST, **server_args}) as runtime:
        threads = int(runtime.launch.environment.get("OMP_NUM_THREADS", 1))
        client = Client(runtime.url)
        for options in (PLAIN, {"cache": False, "controller": "fixed", "num_speculative_tokens": 3}, {}):
            warm = {"namespace": "warm", "program": "warm", **options}
            client.ask([WARM_TEXT, "Hello"], warm, Ask(24), key="warm")
        name = Path(draft).name if draft else "no draft"
        out.print(
            f"engine: SGLang {installed_version()}, {Path(target).name} with {name}, {threads} thread(s) "
            f"({time.monotonic() - started:.0f} s)"
        )
        try:
            yield Engine(client, target, threads, runtime)
        finally:
            client.http.close()
