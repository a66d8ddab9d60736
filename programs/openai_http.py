"""OpenAI-compatible servers over HTTP: one way to ask, stream and fail for the backends that need it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx

from sgl_spec.errors import EngineError
from sgl_spec.server_error import ServerError, said

TIMEOUT_S = 600.0


class OpenAIServer:
    """A server's address and key; `url` may end in /v1 or not."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        base = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.url = base
        self._client = httpx.Client(base_url=base, headers=headers, timeout=TIMEOUT_S)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer's JSON; raises ServerError, EngineError."""
        try:
            answer = self._client.post(path, json=body)
        except httpx.TransportError as error:
            raise EngineError(
                f"No server answers at {self.url} ({error}): start one or correct the address."
            ) from error
        _check(answer)
        document: dict[str, Any] = answer.json()
        return document

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the documents of a stream."""
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        try:
            with self._client.stream("POST", path, json=asked) as answer:
                if answer.status_code != httpx.codes.OK:
                    answer.read()
                _check(answer)
                for line in answer.iter_lines():
                    data = line.removeprefix("data:").strip()
                    if line.startswith("data:") and data != "[DONE]":
                        yield json.loads(data)
        except httpx.TransportError as error:
            raise EngineError(f"The stream of {self.url} broke ({error}): ask again.") from error


def _check(answer: httpx.Response) -> None:
    if answer.status_code == httpx.codes.OK:
        return
    try:
        content = answer.json()
    except ValueError:
        content = answer.text
    raise ServerError(answer.status_code, said(content))


def meta_of(usage: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
    """Return an answer's usage as the front end's meta_info."""
    given = usage or {}
    cached = (given.get("prompt_tokens_details") or {}).get("cached_tokens")
    return {
        "prompt_tokens": given.get("prompt_tokens"),
        "completion_tokens": given.get("completion_tokens"),
        "cached_tokens": cached,
        "finish_reason": {"type": finish} if finish else None,
    }
