"""Rows of an OpenAI batch file: posted as they are, answered in the form of an OpenAI batch output file."""

import uuid
from typing import Any

import httpx

from sgl_spec.batch.rows import Row
from sgl_spec.batch.usage import Usage
from sgl_spec.batch.work import Outcome, RowError
from sgl_spec.server_error import ServerError, said

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
TIMEOUT_S = 3600.0


def openai_row(row: Row, server: Any) -> Outcome:
    """POST the row's body to its url on `server`; raises ServerError with the server's status."""
    url, body, method = row.values.get("url"), row.values.get("body"), row.values.get("method", "POST")
    if method != "POST" or url not in URLS:
        raise RowError(f"method {method!r} with url {url!r} is no batch request: use POST with {', '.join(URLS)}.")
    if not isinstance(body, dict) or body.get("stream"):
        raise RowError("the body must be an object without stream: a batch keeps whole answers.")
    headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
    answer = httpx.post(f"{server.base_url}{url}", json=body, headers=headers, timeout=TIMEOUT_S)
    if answer.status_code != httpx.codes.OK:
        raise ServerError(answer.status_code, said(_json(answer)))
    document = answer.json()
    response = {"status_code": answer.status_code, "request_id": str(document.get("id")), "body": document}
    batch_id = f"batch_req_{uuid.uuid5(uuid.NAMESPACE_OID, row.digest + str(row.index)).hex}"
    return Outcome(None, _usage(document), {"id": batch_id, "custom_id": row.id, "response": response})


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return answer.text


def _usage(document: dict[str, Any]) -> Usage:
    """Return the counts of an OpenAI answer; with our server's figures where it sends them."""
    given = document.get("usage") or {}
    details = given.get("prompt_tokens_details") or {}
    spec = (document.get("metadata") or {}).get("sgl_spec") or document.get("sgl_spec")
    meta = {
        "prompt_tokens": given.get("prompt_tokens", given.get("input_tokens")),
        "completion_tokens": given.get("completion_tokens", given.get("output_tokens")),
        "cached_tokens": details.get("cached_tokens"),
        "sgl_spec": spec if isinstance(spec, dict) else None,
    }
    return Usage.of(meta)
