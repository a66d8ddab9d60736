"""SGLang on this machine: ours, and stock SGLang on PyTorch's kernels, plainly and with its own STANDALONE."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sgl_spec.bench.ab import MODEL_ONLY, PLAIN
from sgl_spec.bench.engine import WARM_TEXT
from sgl_spec.bench.load import Ask, Client
from sgl_spec.bench.peers.side import Call
from sgl_spec.cpu.build import CHOICE
from sgl_spec.upstream import installed_version

PLAINLY, SPECULATIVE = "plain", "all sources"
OUR_MODES: dict[str, dict[str, Any]] = {PLAINLY: PLAIN, SPECULATIVE: {}, "draft model": MODEL_ONLY}
STANDALONE_K = 3
STANDALONE = f"STANDALONE, K={STANDALONE_K}"


@dataclass(frozen=True)
class Ours:
    """Our engine. Each mode has its own prefix cache and draft cache: every prompt is cold in each."""

    client: Client
    run: str  # tells this comparison from others on the same server
    modes: dict[str, list[int]]
    engine: str = "sgl-spec"

    def ask(self, mode: str, texts: list[str], tokens: int) -> Call:
        """See `Side.ask`."""
        name = f"{self.run} {mode} {len(texts)}"
        return _asked(self.client, texts, {"namespace": name, "program": name, **OUR_MODES[mode]}, tokens, name)


@dataclass(frozen=True)
class Stock:
    """Stock SGLang: a server per mode."""

    clients: dict[str, Client]
    modes: dict[str, list[int]]
    engine: str = f"SGLang {installed_version()} on PyTorch"

    def ask(self, mode: str, texts: list[str], tokens: int) -> Call:
        """See `Side.ask`."""
        return _asked(self.clients[mode], texts, None, tokens, f"{len(texts)}")


@contextmanager
def stock(job: dict[str, Any]) -> Iterator[Stock]:
    """Both servers, started and warm, without a source of ours and without our kernels."""
    from sgl_spec.serve import plan_launch
    from sgl_spec.server_process import ServerProcess

    guesses = {
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": job["draft"],
        "speculative_num_steps": STANDALONE_K,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": STANDALONE_K + 1,
        "disable_overlap_schedule": True,
    }
    with ExitStack() as stack:
        clients = {}
        for mode, more in ((PLAINLY, {}), (STANDALONE, guesses)):
            plain = plan_launch(
                {"model_path": job["target"], "draft_cache": False, "prediction": False, "log_level": "warning"}
            )
            environment = {**plain.environment, CHOICE: "torch"}
            launch = replace(plain, server_args={**plain.server_args, **more}, environment=environment)
            server = stack.enter_context(ServerProcess(launch))
            server.wait()
            clients[mode] = Client(launch.url)
            stack.callback(clients[mode].http.close)
            _asked(clients[mode], [WARM_TEXT, "Hello"], None, 24, "warm")
        yield Stock(clients, {mode: [1, len(job["batch"])] for mode in clients})


def _asked(client: Client, texts: list[str], options: dict[str, Any] | None, tokens: int, key: str) -> Call:
    answer = client.ask(texts, options, Ask(tokens, ignore_eos=True), key=key)
    return Call(answer.tokens, answer.seconds, answer.texts)
