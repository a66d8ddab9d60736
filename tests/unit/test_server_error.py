"""What a server refuses reaches the program as its own sentence, also in a stream that began with 200."""

from types import SimpleNamespace
from typing import Any

import pytest

from sgl_spec.server_error import ServerError, assert_success


def answer(status: int, lines: list[bytes]) -> Any:
    document = {"error": {"message": "no"}}
    return SimpleNamespace(status_code=status, json=lambda: document, iter_lines=lambda **_: iter(lines))


def test_a_status_is_an_error_with_the_servers_sentence() -> None:
    with pytest.raises(ServerError, match="no") as raised:
        assert_success(answer(404, []))
    assert raised.value.status == 404


def test_an_error_inside_a_stream_is_raised_where_it_comes() -> None:
    first, refused = b'data: {"text": "a \\"error\\""}', b'data: {"error":{"message":"too long","code":413}}'
    stream = answer(200, [first, b"", refused])
    assert_success(stream)
    lines = stream.iter_lines(decode_unicode=False)
    assert [next(lines), next(lines)] == [first, b""]
    with pytest.raises(ServerError, match="too long") as raised:
        next(lines)
    assert raised.value.status == 413
