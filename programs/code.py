"""Code: complete it, edit a file, explain it.

Examples:
  python -m programs.code complete "def fibonacci(n):"
  python -m programs.code complete "def median(xs):" --candidates 4 --test test_median.py
  python -m programs.code edit app.py "rename the function add to plus" --write
  python -m programs.code explain app.py --json
"""

import difflib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import sglang as sgl
import typer

import sgl_spec
from programs.command import run
from programs.files import read_text, write_whole
from programs.place import Place, takes_place
from programs.sandbox import Verdict, judge
from programs.state import check, text_of
from sgl_spec.console import JsonFlag, emit, people
from sgl_spec.errors import ConfigError, SpecError

FENCE = "```"
SYSTEM = "You are an expert programmer. Code comes in one fenced block, without other text."
MAX_TOKENS = 512
SAMPLED = 0.8  # temperature of candidates after the first, which is greedy
EXPLANATION = {
    "type": "object",
    "properties": {
        "summary": {"type": "string", "maxLength": 400},
        "parts": {
            "type": "array",
            "maxItems": 8,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 60},
                    "purpose": {"type": "string", "maxLength": 200},
                },
                "required": ["name", "purpose"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["summary", "parts"],
    "additionalProperties": False,
}

MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="0 is greedy.")]


def fenced(code: str, language: str = "python") -> str:
    """Return a fenced block."""
    return f"{FENCE}{language}\n{code.rstrip()}\n{FENCE}"


@sgl.function
def complete(s: Any, code: str, candidates: int = 1, *, max_tokens: int = MAX_TOKENS, temperature: float = 0.0) -> None:
    """Continue `code` in `candidates` forks that share the prompt; variable "candidates" lists the whole codes."""
    s += sgl.system(SYSTEM)
    s += sgl.user(f"Complete this code:\n{fenced(code)}")
    forks = s.fork(candidates)
    start = f"{FENCE}python\n{code}"
    heats = [temperature, *[max(temperature, SAMPLED)] * (candidates - 1)]
    forks += [
        sgl.assistant(start + sgl.gen("rest", max_tokens=max_tokens, temperature=heat, stop=FENCE)) for heat in heats
    ]
    s["candidates"] = [code + text_of(fork, "rest").rstrip() + "\n" for fork in forks]


@sgl.function
def edit(s: Any, code: str, instruction: str, *, max_tokens: int = MAX_TOKENS, temperature: float = 0.0) -> None:
    """Rewrite `code`. Most of it stays, so it is its own prediction; the new code is the variable "code"."""
    s += sgl.system(SYSTEM)
    s += sgl.user(f"{instruction}\nReturn the whole changed code.\n{fenced(code)}")
    with sgl_spec.options(prediction=code):
        new = sgl.gen("code", max_tokens=max_tokens, temperature=temperature, stop=FENCE)
    s += sgl.assistant(f"{FENCE}python\n" + new)


@sgl.function
def explain(
    s: Any, code: str, *, structured: bool = False, max_tokens: int = MAX_TOKENS, temperature: float = 0.0
) -> None:
    """Explain `code` as text, or as JSON of the schema EXPLANATION; the variable is "explanation"."""
    schema = json.dumps(EXPLANATION) if structured else None
    form = " Answer as JSON with a summary and the parts." if structured else ""
    s += sgl.user(f"Explain what this code does.{form}\n{fenced(code)}")
    s += sgl.assistant(sgl.gen("explanation", max_tokens=max_tokens, temperature=temperature, json_schema=schema))


def best(candidates: list[str], tests: str) -> tuple[int, list[Verdict]]:
    """Return the position of the candidate that passes most tests (the earliest of equals), and all verdicts."""
    verdicts = [judge(candidate, tests) for candidate in candidates]
    return max(range(len(verdicts)), key=lambda at: (verdicts[at].passed, -at)), verdicts


def changes(old: str, new: str, name: str) -> str:
    """Return the unified diff; empty for equal texts."""
    lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def edited(state: Any, old: str) -> str:
    """Return the new code of an edit with the old one's final newline. Raises SpecError where it is not whole."""
    text = text_of(check(state), "code")
    finish = (state.get_meta_info("code") or {}).get("finish_reason") or {}
    if finish.get("type") == "length":
        raise SpecError("The edit is cut off: raise --max-tokens above the length of the file.")
    return text.rstrip("\n") + ("\n" if old.endswith("\n") else "")


app = typer.Typer(
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Complete, edit and explain code, with speculative decoding.",
    no_args_is_help=True,
)


@app.command("complete")
@takes_place
def complete_command(
    code: Annotated[str, typer.Argument(help="The beginning, or @FILE.")],
    *,
    candidates: Annotated[int, typer.Option("--candidates", "-n", min=1, max=64, help="How many to write.")] = 1,
    test: Annotated[Path | None, typer.Option(help="Python file with functions test_*; the best is chosen.")] = None,
    max_tokens: MaxTokens = MAX_TOKENS,
    temperature: Temperature = 0.0,
    place: Place,
    json_output: JsonFlag = False,
) -> int:
    """Continue code; with --test the candidate that passes most tests, run in a limited process of its own.

    \b
    Examples:
      python -m programs.code complete "def fibonacci(n):"
      python -m programs.code complete @median.py -n 4 --test test_median.py --url http://127.0.0.1:30000
    """
    if candidates > 1 and test is None:
        raise ConfigError(f"candidates={candidates} needs --test: without tests there is no best one.")
    start = read_text(Path(code[1:]), "code") if code.startswith("@") else code
    tests = read_text(test, "test") if test else ""
    with place.connect("code") as backend:
        state = complete.run(start, candidates, max_tokens=max_tokens, temperature=temperature, backend=backend)
        texts: list[str] = check(state)["candidates"]
    chosen, verdicts = best(texts, tests) if test else (0, [])
    out = people(json_output)
    out.print(texts[chosen], markup=False)
    for position, verdict in enumerate(verdicts):
        note = f": {verdict.problem}" if verdict.problem else ""
        out.print(f"candidate {position}: {verdict.passed} of {verdict.tests} tests{note}", markup=False)
    if json_output:
        emit({"code": texts[chosen], "chosen": chosen, "verdicts": [asdict(verdict) for verdict in verdicts]})
    return 0 if not verdicts or verdicts[chosen].good else 1


@app.command("edit")
@takes_place
def edit_command(
    file: Annotated[Path, typer.Argument(help="The file to change.")],
    instruction: Annotated[str, typer.Argument(help="What to change.")],
    *,
    write: Annotated[bool, typer.Option("--write", help="Write the file; without it only the diff is shown.")] = False,
    max_tokens: MaxTokens = MAX_TOKENS,
    temperature: Temperature = 0.0,
    place: Place,
    json_output: JsonFlag = False,
) -> None:
    """Change a file, with its old text as the prediction; prints the diff.

    \b
    Example:
      python -m programs.code edit app.py "rename add to plus" --write
    """
    old = read_text(file, "file")
    with place.connect("code") as backend:
        state = edit.run(old, instruction, max_tokens=max_tokens, temperature=temperature, backend=backend)
        new = edited(state, old)
    diff = changes(old, new, file.name)
    people(json_output).print(diff or "no change", markup=False)
    if write and diff:
        write_whole(file, new)
    if json_output:
        emit({"file": str(file), "diff": diff, "written": bool(write and diff)})


@app.command("explain")
@takes_place
def explain_command(
    file: Annotated[Path, typer.Argument(help="The file to explain.")],
    *,
    max_tokens: MaxTokens = MAX_TOKENS,
    temperature: Temperature = 0.0,
    place: Place,
    json_output: JsonFlag = False,
) -> None:
    """Explain a file; with --json as a document of a fixed schema.

    \b
    Example:
      python -m programs.code explain app.py --json
    """
    code = read_text(file, "file")
    with place.connect("code") as backend:
        state = explain.run(
            code, structured=json_output, max_tokens=max_tokens, temperature=temperature, backend=backend
        )
        text = text_of(check(state), "explanation")
    if not json_output:
        people().print(text, markup=False)
        return
    emit(document(text))


def document(text: str) -> dict[str, Any]:
    """Return an explanation as JSON; raises SpecError where it was cut off."""
    try:
        found: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError:
        raise SpecError("The explanation is cut off before its JSON ends: raise --max-tokens.") from None
    return found


if __name__ == "__main__":
    raise SystemExit(run(app, "code"))
