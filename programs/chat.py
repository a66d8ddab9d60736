"""Chat: one question, several turns, or an interactive conversation that streams and can be resumed.

Examples:
  python -m programs.chat "Why is the sky blue?"
  python -m programs.chat --url http://127.0.0.1:30000 --system "Be brief." "Who was Ada?" "And why?"
  python -m programs.chat --history talk.json
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import sglang as sgl
import typer
from rich.console import Console

from programs.command import run
from programs.engines import Engine
from programs.history import Message, load, save
from programs.origin import Origins, colour, tokens_by_source
from programs.place import Place, takes_place
from programs.screen import Screen
from programs.state import check, pieces, text_of
from sgl_spec.batch.usage import total
from sgl_spec.console import JsonFlag, emit, people
from sgl_spec.errors import ConfigError

MAX_TOKENS = 256
COMMANDS = "/new starts over, /undo drops the last turn, /stats shows the server's counts, /quit ends"


@sgl.function
def chat(
    s: Any,
    question: str,
    system: str = "",
    turns: tuple[Message, ...] = (),
    *,
    max_tokens: int = MAX_TOKENS,
    temperature: float = 0.0,
) -> None:
    """Answer `question` after the conversation so far; the answer is the variable "answer"."""
    if system:
        s += sgl.system(system)
    for turn in turns:
        s += sgl.user(turn["content"]) if turn["role"] == "user" else sgl.assistant(turn["content"])
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=max_tokens, temperature=temperature))


class Conversation:
    """The turns so far, and how the next one is asked. Saved after each turn where a file is given."""

    def __init__(
        self, backend: Any, system: str, turns: list[Message], file: Path | None = None, **limits: Any
    ) -> None:
        self.backend, self.system, self.turns, self.file, self.limits = backend, system, turns, file, limits

    def ask(self, question: str, console: Console) -> dict[str, Any]:
        """Stream the answer to `console`, remember the turn, return it with its figures."""
        began = time.monotonic()
        state = chat.run(question, self.system, tuple(self.turns), **self.limits, stream=True, backend=self.backend)
        origins = Origins()
        meta: dict[str, Any] = {}
        with Screen(console) as screen:
            for text, meta in pieces(state, "answer"):
                screen.add(text, colour(origins.of(meta)), figures(meta, time.monotonic() - began))
        seconds = time.monotonic() - began
        answer = text_of(check(state), "answer")
        meta = state.get_meta_info("answer") or meta
        self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        self.save()
        console.print(figures(meta, seconds), style="dim")
        by_source = tokens_by_source(meta)
        return {
            "question": question,
            "answer": answer,
            **total(meta).as_dict(),
            "tokens_by_source": by_source,
        }

    def save(self) -> None:
        """Write the conversation to its file."""
        if self.file:
            save(self.file, self.system, self.turns)


def figures(meta: dict[str, Any], seconds: float) -> str:
    """Return one line: tokens, tokens/s, drafted tokens per round (K), acceptance, tokens per pass."""
    usage = total(meta)
    parts = [
        f"{usage.completion_tokens} tokens",
        f"{usage.completion_tokens / max(seconds, 1e-9):.1f} tokens/s",
    ]
    if usage.rounds:
        parts.append(f"K {usage.proposed / usage.rounds:.1f}")
    if usage.draft_acceptance_rate is not None:
        parts.append(f"acceptance {usage.draft_acceptance_rate:.2f}")
    if usage.mean_acceptance_length is not None:
        parts.append(f"{usage.mean_acceptance_length:.2f} tokens per pass")
    parts += [f"{source} {count}" for source, count in tokens_by_source(meta).items()]
    reason = (meta.get("sgl_spec") or {}).get("reason_not_speculated")
    return " · ".join([*parts, f"not speculated: {reason}"] if reason else parts)


@takes_place
def main(
    questions: Annotated[
        list[str] | None,
        typer.Argument(help="One turn each; left out: interactive, or stdin as one question."),
    ] = None,
    *,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    history: Annotated[
        Path | None,
        typer.Option(help="File of the conversation: resumed if it exists, saved after each turn."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = MAX_TOKENS,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    place: Place,
    json_output: JsonFlag = False,
) -> None:
    """Chat with a model, with speculative decoding. Text that was drafted is coloured by who drafted it.

    \b
    Examples:
      python -m programs.chat "Why is the sky blue?"
      python -m programs.chat --url http://127.0.0.1:30000 --system "Be brief." "Who was Ada?" "And why?"
      python -m programs.chat --history talk.json
    """
    saved_system, turns = load(history) if history else ("", [])
    if history and not history.parent.is_dir():
        raise ConfigError(f"history={history} lies in no existing folder: make the folder or name another file.")
    console = people(json_output)
    source = iter(questions) if questions else asked(console)
    with place.connect("chat") as backend:
        talk = Conversation(
            backend, saved_system if system is None else system, turns, history,
            max_tokens=max_tokens, temperature=temperature,
        )  # fmt: skip
        done = converse(talk, source, console)
    spent = backend.stats() if place.engine is Engine.openai else None
    if spent:
        console.print(spending(spent), style="dim")
    if json_output:
        emit({"system": talk.system, "turns": done, **({"spent": spent} if spent else {})})


def spending(spent: dict[str, Any]) -> str:
    """Return one line: tokens of both models, predicted tokens that were taken over, cost."""
    parts = [f"{role} {spent[role]['completion_tokens']} tokens" for role in ("draft", "target") if spent[role]]
    parts.append(f"prediction: {spent['accepted_prediction_tokens']} taken over, ")
    parts[-1] += f"{spent['rejected_prediction_tokens']} not"
    return " · ".join([*parts, f"cost {spent['cost']:.6f}"])


def asked(console: Console) -> Iterator[str]:
    """Yield what is typed until end of file; without a terminal all of stdin is one question."""
    if not sys.stdin.isatty():
        yield sys.stdin.read()
        return
    console.print(COMMANDS, style="dim")
    while True:
        try:
            yield console.input("[bold]> [/bold]")
        except EOFError:
            return


def converse(talk: Conversation, source: Iterator[str], console: Console) -> list[dict[str, Any]]:
    """Ask every question; returns the turns with their figures. Lines that begin with / are commands."""
    done = []
    for line in source:
        question = line.strip()
        if question == "/quit":
            break
        if question == "/new":
            talk.turns = []
            talk.save()
        elif question == "/undo":
            talk.turns = talk.turns[:-2]
            talk.save()
        elif question == "/stats":
            console.print_json(data=talk.backend.stats())
        elif question.startswith("/"):
            console.print(f"There is no command {question}: {COMMANDS}.")
        elif question:
            done.append(talk.ask(question, console))
    return done


app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
app.command()(main)

if __name__ == "__main__":
    raise SystemExit(run(app, "chat"))
