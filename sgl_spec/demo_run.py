"""`sgl-spec demo`: the real engine on the demo pair, with and without guessing, side by side in one run."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from sgl_spec.console import JsonFlag, emit, people, table
from sgl_spec.upstream import installed_version

QUESTIONS = (
    "Explain in three sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "List five tips for learning a new language.",
    "Summarize: The committee met on Tuesday to discuss the new bridge. Engineers presented two designs, one of "
    "steel and one of concrete. The steel bridge would cost more but could be built in half the time. After two "
    "hours the committee voted for the steel bridge and asked for a detailed plan by March.",
)
SYSTEM = "You are a helpful assistant."
PLAIN = {"speculate": False, "cache": False}  # leaves no text behind that the other side could guess from


@dataclass
class Side:
    """What was measured with guessing, or without."""

    tokens: int = 0
    seconds: float = 0.0
    texts: list[str] = field(default_factory=list)
    metas: list[dict[str, Any]] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of request time; the prompt was in the cache before."""
        return self.tokens / self.seconds

    def total(self, key: str) -> int:
        """Sum of a statistic over the answers."""
        return sum(meta.get(key) or 0 for meta in self.metas)


def demo(
    num_speculative_tokens: Annotated[int, typer.Option(min=0, max=32, help="Guesses per round at the start.")] = 5,
    controller: Annotated[str, typer.Option(help="Policy that sets the number of guesses.")] = "throughput",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per answer.")] = 96,
    json_output: JsonFlag = False,
) -> None:
    """Start the engine on the demo pair, answer with and without guessing, and print what was measured.

    Example: sgl-spec demo --json
    """
    from sgl_spec.models import fetch_demo
    from sgl_spec.serve import plan_launch
    from sgl_spec.server_process import ServerProcess

    out = people(json_output)
    started = time.monotonic()
    target, draft = fetch_demo()
    out.print(f"models: {target.name} and its draft {draft.name} ({time.monotonic() - started:.0f} s)")
    started = time.monotonic()
    launch = plan_launch(
        {
            "model_path": str(target),
            "draft_model_path": str(draft),
            "num_speculative_tokens": num_speculative_tokens,
            "controller": controller,
            "log_level": "warning",
        }
    )
    with ServerProcess(launch) as server:
        import sglang as sgl  # takes as long as the server's own import, beside it

        from sgl_spec.runtime import Runtime, live_state

        server.wait()
        backend = Runtime.attach(launch.url)
        live_state(backend, server)
        sgl.set_default_backend(backend)
        out.print(f"engine: SGLang {installed_version()} answers at {launch.url} ({time.monotonic() - started:.0f} s)")
        for change in launch.changed:
            out.print(f"  set for you: {change}")
        plain, guessing = Side(), Side()
        for number, question in enumerate(QUESTIONS):
            sides: list[tuple[Side, dict[str, Any]]] = [(plain, PLAIN), (guessing, {"program": "demo"})]
            _answer(question, 1, {"speculate": False, "cache": False}, lambda _: None)  # the prompt into the cache
            for side, options in sides if number % 2 else reversed(sides):
                echo = (
                    (lambda piece: out.print(piece, end="")) if number == 0 and side is guessing else (lambda _: None)
                )
                begun = time.monotonic()
                text, meta = _answer(question, max_new_tokens, options, echo)
                side.seconds += time.monotonic() - begun
                side.tokens += meta["completion_tokens"]
                side.texts.append(text)
                side.metas.append(meta["sgl_spec"])
            if number == 0:
                out.print("")
    threads = int(launch.environment.get("OMP_NUM_THREADS", os.cpu_count() or 1))
    document = _document(plain, guessing, target.name, draft.name, num_speculative_tokens, threads)
    out.print(_card(document, guessing))
    if json_output:
        emit(document)
    if not document["identical"]:
        raise typer.Exit(1)


def _answer(
    question: str, tokens: int, options: dict[str, Any], echo: Callable[[str], None]
) -> tuple[str, dict[str, Any]]:
    """Run the chat program with streaming; return the text and its meta information."""
    import sgl_spec
    from programs.chat import chat

    with sgl_spec.options(**options):
        state = chat.run(question=question, system=SYSTEM, max_tokens=tokens, temperature=0.0, stream=True)
        for piece in state.text_iter("answer"):
            echo(piece)
    return state["answer"], state.get_meta_info("answer")


def _document(
    plain: Side, guessing: Side, target: str, draft: str, num_speculative_tokens: int, threads: int
) -> dict[str, Any]:
    proposed, accepted = guessing.total("num_draft_tokens"), guessing.total("num_accepted_draft_tokens")
    rounds = guessing.total("num_spec_steps") + guessing.total("num_plain_steps")
    return {
        "identical": plain.texts == guessing.texts,
        "plain_tokens_per_s": round(plain.tokens_per_s, 2),
        "speculative_tokens_per_s": round(guessing.tokens_per_s, 2),
        "speedup": round(guessing.tokens_per_s / plain.tokens_per_s, 3),
        "draft_acceptance_rate": round(accepted / proposed, 3) if proposed else None,
        "mean_acceptance_length": round(1 + accepted / rounds, 3) if rounds else None,
        "guesses_per_round": round(proposed / rounds, 3) if rounds else None,
        "target": target,
        "draft": draft,
        "num_speculative_tokens": num_speculative_tokens,
        "threads": threads,
        "sglang": installed_version(),
    }


def _card(document: dict[str, Any], guessing: Side) -> Any:
    sources: dict[str, list[int]] = {}
    for meta in guessing.metas:
        for source, counts in meta.get("accepted_by_source", {}).items():
            total = sources.setdefault(source, [0, 0])
            total[0] += counts["proposed"]
            total[1] += counts["accepted"]
    rows = [
        ("same text", "yes" if document["identical"] else "NO"),
        ("plain", f"{document['plain_tokens_per_s']} tokens/s"),
        ("speculative", f"{document['speculative_tokens_per_s']} tokens/s ({document['speedup']} x)"),
        ("acceptance rate", document["draft_acceptance_rate"]),
        ("tokens per verify", document["mean_acceptance_length"]),
        ("guesses per round", document["guesses_per_round"]),
        *[(f"accepted from {name}", f"{right} of {made}") for name, (made, right) in sources.items()],
    ]
    return table("measured here", ("", ""), rows)
