"""Summarization of documents of any length: notes on each chunk, then a summary of the notes.

Examples:
  python -m programs.summarization report.txt
  python -m programs.summarization docs/ --chunk-tokens 800 --max-tokens 200
  cat report.txt | python -m programs.summarization - --json
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import sglang as sgl
import typer

from programs.chunks import CountTokens, chunks
from programs.command import run
from programs.files import read_text
from programs.place import Place, takes_place
from programs.state import check, text_of
from sgl_spec.console import JsonFlag, emit, people
from sgl_spec.errors import ConfigError

SYSTEM = "You summarize documents. Keep names, numbers and decisions; add nothing."
NOTE_TOKENS = 96
SUMMARY_TOKENS = 256
CHUNK_TOKENS = 1024
SUFFIXES = (".txt", ".md", ".rst", ".py", ".json", ".csv", ".html", ".tex", ".log")
GOOD, POOR = "good", "poor"


@sgl.function
def take_notes(s: Any, parts: list[str], *, max_tokens: int = NOTE_TOKENS) -> None:
    """Take notes on each part in a fork of its own; all share the instructions. Variable "notes"."""
    s += sgl.system(SYSTEM)
    forks = s.fork(len(parts))
    forks += [sgl.user(f"Write short notes on this part of a document:\n\n{part}") for part in parts]
    forks += sgl.assistant(sgl.gen("note", max_tokens=max_tokens, temperature=0.0))
    s["notes"] = [text_of(fork, "note").strip() for fork in forks]


@sgl.function
def write_summary(s: Any, text: str, *, max_tokens: int = SUMMARY_TOKENS, hint: str = "") -> None:
    """Summarize `text`, then judge the result: variables "summary" and "quality" (good or poor)."""
    s += sgl.system(SYSTEM)
    s += sgl.user(f"Summarize this in one paragraph.{hint}\n\n{text}")
    s += sgl.assistant(sgl.gen("summary", max_tokens=max_tokens, temperature=0.0))
    s += sgl.user("Is this summary faithful to the text and complete? Answer with one word, good or poor.")
    s += sgl.assistant(sgl.select("quality", [GOOD, POOR]))


def summarize(
    text: str,
    backend: Any,
    count: CountTokens,
    *,
    chunk_tokens: int = CHUNK_TOKENS,
    max_tokens: int = SUMMARY_TOKENS,
    use_thread: bool = True,
) -> dict[str, Any]:
    """Return {"summary", "quality", "attempts", "chunks", "levels"} of a text of any length.

    Notes are taken level by level until they fit into one chunk. A summary that is judged poor is written once
    more with a sharper instruction, and its own verdict is reported. Raises ConfigError where notes do not get
    shorter than what they are about.
    """
    parts = chunks(text, chunk_tokens, count)
    if not parts:
        raise ConfigError("The document is empty: name one with text.")
    first, levels = len(parts), 0
    note_tokens = min(NOTE_TOKENS, max(1, chunk_tokens // 4))
    while len(parts) > 1:
        state = take_notes.run(parts, max_tokens=note_tokens, backend=backend, use_thread=use_thread)
        notes = chunks("\n\n".join(check(state)["notes"]), chunk_tokens, count)
        if len(notes) >= len(parts):
            raise ConfigError(f"chunk_tokens={chunk_tokens} is too small for notes to be shorter: raise it.")
        parts, levels = notes or [""], levels + 1
    options = {"max_tokens": max_tokens, "backend": backend, "use_thread": use_thread}
    state, attempts = check(write_summary.run(parts[0], **options)), 1
    if state["quality"] == POOR:
        hint = " Name every fact, number and decision; add nothing."
        state, attempts = check(write_summary.run(parts[0], hint=hint, **options)), 2
    return {
        "summary": text_of(state, "summary").strip(),
        "quality": state["quality"],
        "attempts": attempts,
        "chunks": first,
        "levels": levels,
    }


def documents(sources: list[str]) -> list[tuple[str, str]]:
    """Return (name, text) of each file, of every text file in each folder, and of stdin for "-"."""
    found: list[tuple[str, str]] = []
    for source in sources:
        path = Path(source)
        if source == "-":
            found.append(("stdin", sys.stdin.read()))
        elif path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix.lower() in SUFFIXES)
            if not inside:
                raise ConfigError(f"source={source} holds no text file ({', '.join(SUFFIXES)}): name one.")
            found += [(str(file), read_text(file, "source")) for file in inside]
        else:
            found.append((source, read_text(path, "source")))
    return found


@takes_place
def main(
    sources: Annotated[list[str], typer.Argument(help="Files, folders, or - for stdin.")],
    *,
    chunk_tokens: Annotated[int, typer.Option(min=32, help="Most tokens of the text in one request.")] = CHUNK_TOKENS,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a summary.")] = SUMMARY_TOKENS,
    place: Place,
    json_output: JsonFlag = False,
) -> int:
    """Summarize documents, with speculative decoding; status 1 says that a summary was judged poor.

    \b
    Examples:
      python -m programs.summarization report.txt --url http://127.0.0.1:30000
      python -m programs.summarization docs/ --chunk-tokens 800
    """
    found = documents(sources)
    out = people(json_output)
    results = []
    with place.connect("summarization") as backend:
        for name, text in found:
            result = summarize(text, backend, backend.count_tokens, chunk_tokens=chunk_tokens, max_tokens=max_tokens)
            out.print(f"{name}: judged {result['quality']}, {result['chunks']} chunks", style="bold", markup=False)
            out.print(result["summary"], markup=False)
            results.append({"source": name, **result})
    if json_output:
        emit({"documents": results})
    return int(any(result["quality"] == POOR for result in results))


app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
app.command()(main)

if __name__ == "__main__":
    raise SystemExit(run(app, "summarization"))
