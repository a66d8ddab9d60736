"""Asks a server: one request, or several at once, with request options; seconds are wall time at the client."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from sgl_spec.errors import EngineError

TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Answer:
    """What came back from one call: one answer, or those of a batch that was sent at once."""

    seconds: float  # from sending to the last token
    metas: list[dict[str, Any]]
    ids: list[list[int]]
    texts: list[str]

    @property
    def tokens(self) -> int:
        """Generated tokens."""
        return sum(len(ids) for ids in self.ids)

    def total(self, key: str) -> int:
        """Sum of a count of ``meta_info["sgl_spec"]`` over the answers."""
        return sum((meta.get("sgl_spec") or {}).get(key) or 0 for meta in self.metas)


@dataclass(frozen=True)
class Ask:
    """How a request is decoded; the same for all requests of a call."""

    max_new_tokens: int = 96
    temperature: float = 0.0
    ignore_eos: bool = False
    sampling: tuple[tuple[str, Any], ...] = ()  # further sampling parameters


class Client:
    """A connection to one server."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=TIMEOUT_S)

    def ask(
        self,
        prompts: str | Sequence[str],
        options: dict[str, Any] | Sequence[dict[str, Any]] | None,
        how: Ask,
        key: str | Sequence[str] | None = None,
        **fields: Any,
    ) -> Answer:
        """Send prompts in one call. `options` are ``custom_params["sgl_spec"]``, one or one per prompt.

        `key` (one, or one per prompt) separates KV caches: requests with different keys share no prefix.
        `fields` go into the request as they are (``return_logprob``, ...). Raises EngineError.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        if key is not None:
            fields["extra_key"] = [key] * len(texts) if isinstance(key, str) else list(key)
        return self._timed({"text": texts, **fields}, len(texts), options, how)

    def ask_ids(self, prompts: Sequence[list[int]], options: dict[str, Any] | None, how: Ask) -> Answer:
        """As `ask`, for prompts of token ids."""
        return self._timed({"input_ids": list(prompts)}, len(prompts), options, how)

    def _timed(
        self,
        body: dict[str, Any],
        count: int,
        options: dict[str, Any] | Sequence[dict[str, Any]] | None,
        how: Ask,
    ) -> Answer:
        each = [options] * count if options is None or isinstance(options, dict) else list(options)
        body["sampling_params"] = [sampling(how, one) for one in each]
        started = time.perf_counter()
        found = self.post(body)
        seconds = time.perf_counter() - started
        return Answer(
            seconds=seconds,
            metas=[one["meta_info"] for one in found],
            ids=[one["output_ids"] for one in found],
            texts=[one["text"] for one in found],
        )

    def post(self, body: dict[str, Any]) -> Any:
        """POST /generate; raises EngineError with the server's own words."""
        try:
            answer = self.http.post("/generate", json=body)
        except httpx.HTTPError as error:
            raise EngineError(f"The server stopped answering ({error!r}): see its log.") from None
        if answer.status_code != httpx.codes.OK:
            raise EngineError(f"The server refused a request of the benchmark: {answer.text[:300]}")
        return answer.json()


def sampling(how: Ask, options: dict[str, Any] | None) -> dict[str, Any]:
    """The request's ``sampling_params``."""
    params: dict[str, Any] = {
        "max_new_tokens": how.max_new_tokens,
        "temperature": how.temperature,
        "ignore_eos": how.ignore_eos,
        **dict(how.sampling),
    }
    return params if options is None else {**params, "custom_params": {"sgl_spec": options}}
