"""A server as programs and batches use it: failures with their status, and counts of all that was asked."""

import copy
import threading
import urllib.error
from collections.abc import Iterator
from typing import Any

import requests
from sglang.lang.interpreter import StreamExecutor
from sglang.lang.ir import SglSamplingParams
from sglang.utils import http_request

from sgl_spec.batch.usage import Usage, total
from sgl_spec.endpoint import SpecEndpoint
from sgl_spec.errors import EngineError
from sgl_spec.request_options import current
from sgl_spec.server_error import INTERNAL, ServerError


class CountingEndpoint(SpecEndpoint):
    """A server as the backend of programs. `usage` counts every request, those of forks included."""

    def __init__(self, url: str, api_key: str | None = None, bound: dict[str, Any] | None = None) -> None:
        try:
            super().__init__(url.rstrip("/"), api_key=api_key, bound=bound)
        except OSError as error:
            raise EngineError(
                f"No server answers at {url} ({reason(error)}): start one or correct the address."
            ) from error
        self.usage = Usage()
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> "CountingEndpoint":
        """What SGLang takes as backend in the thread that starts a program: this, with its options bound."""
        view = copy.copy(self)
        view.bound = {**self.bound, **current()}
        return view

    def fresh(self) -> "CountingEndpoint":
        """Return this endpoint with counts of its own."""
        view = copy.copy(self)
        view.usage = Usage()
        return view

    def generate(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> Any:
        """Generate and count."""
        text, meta = super().generate(s, sampling_params)
        self._count(meta)
        return text, meta

    def generate_stream(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> Iterator[Any]:
        """Stream (text, meta_info), and count the last meta_info."""
        meta: dict[str, Any] | None = None
        for text, meta in super().generate_stream(s, sampling_params):
            yield text, meta
        if meta is not None:
            self._count(meta)

    def count_tokens(self, texts: list[str]) -> list[int]:
        """Return how many tokens of the target each text has, without special tokens."""
        if not texts:
            return []
        body = {"prompt": texts, "add_special_tokens": False}
        answer = http_request(f"{self.base_url}/tokenize", json=body, api_key=self.api_key)
        self._assert_success(answer)
        counts: list[int] = answer.json()["count"]
        return counts

    def _count(self, meta: Any) -> None:
        with self._lock:
            self.usage.add(total(meta))
        for one in meta if isinstance(meta, list) else [meta]:
            finish = one.get("finish_reason") or {}
            if finish.get("type") == "abort":
                status = finish.get("status_code") or INTERNAL
                raise ServerError(int(status), f"The server aborted the request: {finish.get('message')}")


def reason(error: OSError) -> str:
    """Return why a connection failed, in few words."""
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return error.strerror or str(error)


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed later: the connection failed, or the server is at fault (5xx)."""
    if isinstance(error, ServerError):
        return error.status >= INTERNAL
    return is_connection(error)


def is_connection(error: BaseException) -> bool:
    """Whether a server could not be reached, or went away while it answered."""
    import http.client

    kinds = (
        urllib.error.URLError,
        ConnectionError,
        TimeoutError,
        http.client.HTTPException,
        requests.RequestException,
    )
    return isinstance(error, kinds) and not isinstance(error, urllib.error.HTTPError)
