"""The programs as `sgl-spec batch` runs them: a row of the input in, what goes into its record out."""

from typing import Any

from programs.chat import MAX_TOKENS, chat
from programs.history import check_messages
from programs.state import check, text_of
from sgl_spec.batch.work import RowError
from sgl_spec.config import shown, unknown_name

Values = dict[str, Any]
COMMON = ("id", "sgl_spec", "max_tokens", "temperature")


def chat_row(values: Values, server: Any) -> Values:
    """Answer {"question", "system"} or {"messages"}; the output is {"answer"}."""
    allow(values, "question", "system", "messages")
    if ("messages" in values) == ("question" in values):
        raise RowError('a chat row needs either "question" or "messages".')
    if "messages" in values:
        system, turns = check_messages(values["messages"], "messages")
        if len(turns) % 2 == 0:
            raise RowError("messages must end with one by the user: there is nothing to answer.")
        question = turns.pop()["content"]
    else:
        question, system, turns = text(values, "question"), text(values, "system", ""), []
    state = chat.run(question, system, tuple(turns), **limits(values), backend=server, use_thread=False)
    return {"answer": text_of(check(state), "answer")}


def allow(values: Values, *keys: str) -> None:
    """Raise RowError for a key that is neither common nor among `keys`."""
    known = [*COMMON, *keys]
    for key in values:
        if key not in known:
            raise RowError(unknown_name("the row", key, known))


def text(values: Values, key: str, default: str | None = None) -> str:
    """Return the text under `key`; raises RowError if it is absent (and no default given) or no text."""
    value = values.get(key, default)
    if not isinstance(value, str):
        raise RowError(f'the row needs a text under "{key}", not {shown(value)}.')
    return value


def limits(values: Values, max_tokens: int = MAX_TOKENS) -> Values:
    """Return max_tokens and temperature of a row; raises RowError for values out of range."""
    tokens, temperature = values.get("max_tokens", max_tokens), values.get("temperature", 0.0)
    if type(tokens) is not int or tokens < 1:
        raise RowError(f"max_tokens={shown(tokens)} must be a whole number from 1 up.")
    if type(temperature) not in (int, float) or temperature < 0:
        raise RowError(f"temperature={shown(temperature)} must be a number from 0 up.")
    return {"max_tokens": tokens, "temperature": float(temperature)}


def code_row(values: Values, server: Any) -> Values:
    """Complete {"code"}, edit {"code", "instruction"} or explain {"code", "task": "explain"}."""
    from programs import code

    allow(values, "code", "instruction", "task")
    task = text(values, "task", "edit" if "instruction" in values else "complete")
    source, bounds = text(values, "code"), limits(values, code.MAX_TOKENS)
    if task == "complete":
        state = code.complete.run(source, **bounds, backend=server, use_thread=False)
        return {"code": check(state)["candidates"][0]}
    if task == "edit":
        state = code.edit.run(source, text(values, "instruction"), **bounds, backend=server, use_thread=False)
        new = code.edited(state, source)
        return {"code": new, "diff": code.changes(source, new, "code")}
    if task == "explain":
        state = code.explain.run(source, **bounds, backend=server, use_thread=False)
        return {"explanation": text_of(state, "explanation")}
    raise RowError(f"task={shown(task)} is unknown: use complete, edit or explain.")


def summarization_row(values: Values, server: Any) -> Values:
    """Summarize {"text"}; "chunk_tokens" bounds a request."""
    from programs import summarization

    allow(values, "text", "chunk_tokens")
    size = values.get("chunk_tokens", summarization.CHUNK_TOKENS)
    if type(size) is not int or size < 32:
        raise RowError(f"chunk_tokens={shown(size)} must be a whole number from 32 up.")
    bound = limits(values, summarization.SUMMARY_TOKENS)["max_tokens"]
    return summarization.summarize(
        text(values, "text"), server, server.count_tokens, chunk_tokens=size, max_tokens=bound, use_thread=False
    )
