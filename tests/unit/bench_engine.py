"""A stand-in for the benchmarks' engine: it answers at once, with seconds that follow from the arm's name."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from sgl_spec.bench import ab
from sgl_spec.bench.load import Answer, Ask

COUNTS = {"num_draft_tokens": 8, "num_accepted_draft_tokens": 6, "num_spec_steps": 2, "num_plain_steps": 0}


class Asked(SimpleNamespace):
    """One call: `texts`, `options` (of all its prompts), `how`, `key`."""


class TimedClient:
    """`pace` is seconds per token, by the last part of the program's name; `reply` the text of an answer."""

    def __init__(self, pace: Callable[[Asked], float], reply: Callable[[Asked], str] = lambda _: "x") -> None:
        self.pace, self.reply = pace, reply
        self.calls: list[Asked] = []
        self.http = "the connection"
        self.on_start: Callable[[], object] = lambda: None

    def ask(self, prompts: Any, options: dict[str, Any], how: Ask, key: Any = None) -> Answer:
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        asked = Asked(texts=texts, options=options, how=how, key=key)
        self.calls.append(asked)
        tokens = how.max_new_tokens
        plain = {"num_plain_steps": tokens}
        spec = plain if options.get("speculate") is False else {**COUNTS, "num_cached_tokens_draft": 20}
        meta = {"prompt_tokens": 50, "cached_tokens": 40, "completion_tokens": tokens, "sgl_spec": spec}
        return Answer(
            tokens * len(texts) * self.pace(asked),
            [meta] * len(texts),
            [list(range(tokens))] * len(texts),
            [self.reply(asked)] * len(texts),
        )


def arm_of(asked: Asked) -> str:
    """The arm that asks, as `ask_in_turn` names it."""
    return str(asked.options["program"]).rpartition("/")[2]


class Machine:
    """What a benchmark's `running` is replaced with; keeps what was started."""

    def __init__(self, client: TimedClient) -> None:
        self.client = client
        self.started: list[tuple[Any, ...]] = []

    @contextmanager
    def __call__(self, target: str, draft: str | None, out: Any, **server_args: Any) -> Iterator[Any]:
        self.started.append((target, draft, server_args))
        self.client.on_start()
        yield SimpleNamespace(client=self.client, target=target, threads=3, runtime=SimpleNamespace(url="http://up"))


def paced(**milliseconds: float) -> TimedClient:
    """A client that takes so many milliseconds per token in each arm (_ for a space)."""
    return TimedClient(lambda asked: milliseconds[arm_of(asked).replace(" ", "_").replace("=", "")] / 1e3)


def run_bench(monkeypatch: Any, capsys: Any, module: Any, client: TimedClient, **options: Any) -> tuple[Any, Any]:
    """Run the command of a benchmark's module; its result, and what it started."""
    machine = Machine(client)
    monkeypatch.setattr(ab, "RESAMPLES", 40)
    monkeypatch.setattr(module, "running", machine)
    monkeypatch.setattr(module, "pair", lambda _target, _draft: ("target", "draft"))
    if hasattr(module, "chat_prompts"):
        monkeypatch.setattr(
            module, "chat_prompts", lambda model, task, count: [f"{model} {task} {i}" for i in range(count)]
        )
    name = module.__name__.rpartition(".")[2]
    getattr(module, {"concurrency": "load"}.get(name, name))(json_output=True, **options)
    return json.loads(capsys.readouterr().out), machine.started
