"""Reading a program's state: its texts with errors raised, its stream piece by piece with statistics.

SGLang keeps an error inside the state; a variable that never came is then a bare KeyError, and a stream just
ends. Here the error itself is raised.
"""

import time
from collections.abc import Iterator
from typing import Any

from sglang.lang.interpreter import ProgramState

POLL_S = 0.001


def check(state: ProgramState) -> ProgramState:
    """Wait until everything submitted ran; raises the error that ended the program, if one did."""
    error = state.error()
    if error is not None:
        raise error
    return state


def text_of(state: ProgramState, name: str) -> str:
    """Return the text of a generated variable, the first of several samples."""
    value = check(state).get_var(name)
    return value[0] if isinstance(value, list) else str(value)


def pieces(state: ProgramState, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (new text, meta_info so far) of a streamed variable; the texts joined are the whole variable.

    SGLang's own `text_iter` can lose a last piece that arrives between its reading and its end check: here
    the end is looked at first.
    """
    executor = state.stream_executor
    while name not in executor.stream_var_event:  # the program runs in a thread and may not have come to it
        if executor.is_finished:
            check(state)
            return
        time.sleep(POLL_S)
    done, arrived = executor.variable_event[name], executor.stream_var_event[name]
    seen = 0
    while True:
        arrived.wait()
        arrived.clear()
        ended = done.is_set()
        text = str(executor.variables.get(name, ""))
        meta = executor.meta_info.get(name) or {}
        if len(text) > seen:
            yield text[seen:], meta
            seen = len(text)
        if ended:
            check(state)
            return
