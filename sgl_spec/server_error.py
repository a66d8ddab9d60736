"""A server's refusal, with its status and the sentence inside its answer."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from sgl_spec.errors import SpecError

OK, BAD_REQUEST, INTERNAL = 200, 400, 500
EVENT = b"data: "


class ServerError(SpecError):
    """A server answered with an error status, or ended a request itself."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def said(content: Any) -> str:
    """Return the sentence inside a server's error document, in any of the forms that servers use."""
    while isinstance(content, dict):
        inner = content.get("error") or content.get("message") or content.get("detail")
        if inner is None:
            break
        content = inner
    return str(content).strip() or "the server gave no reason"


def assert_success(answer: Any) -> None:
    """Raise ServerError for an answer with an error status; a stream raises it when it comes to an error."""
    if answer.status_code == OK:
        if hasattr(answer, "iter_lines"):
            answer.iter_lines = watched(answer.iter_lines)
        return
    try:
        content = answer.json()
    except ValueError:
        content = answer.text
    raise ServerError(answer.status_code, said(content))


def watched(iter_lines: Callable[..., Iterator[bytes]]) -> Callable[..., Iterator[bytes]]:
    """Around the lines of an event stream: SGLang answers 200 first, and says afterwards what was wrong."""

    def lines(*args: Any, **kwargs: Any) -> Iterator[bytes]:
        for line in iter_lines(*args, **kwargs):
            if line.startswith(EVENT + b'{"error"'):
                content = json.loads(line.removeprefix(EVENT))
                inner = content["error"]
                status = inner.get("code") if isinstance(inner, dict) else None
                raise ServerError(int(status or BAD_REQUEST), said(content))
            yield line

    return lines
