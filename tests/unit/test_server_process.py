"""When a starting server counts as up: after its own warm-up, whatever key it has."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from sgl_spec import server_process


@pytest.fixture
def server() -> Iterator[Any]:
    state = SimpleNamespace(up=False, key=None, asked=[], launch=SimpleNamespace(server_args={}, url=""))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            refused = state.key and self.path == "/ping" and self.headers["Authorization"] != f"Bearer {state.key}"
            self.send_response(401 if refused else 200 if state.up else 503)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    state.launch.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield state
    http.shutdown()
    http.server_close()


def test_it_is_up_after_its_warm_up(server: Any) -> None:
    assert not server_process._answers(server.launch)
    server.up = True
    assert server_process._answers(server.launch)
    assert set(server.asked) == {"/ping"}


def test_its_key_is_used(server: Any) -> None:
    server.up, server.key = True, "secret"
    server.launch.server_args["api_key"] = "secret"
    assert server_process._answers(server.launch)
    assert set(server.asked) == {"/ping"}


def test_a_key_that_we_do_not_have_is_no_obstacle(server: Any) -> None:
    server.key = "secret"
    assert not server_process._answers(server.launch)
    server.up = True
    assert server_process._answers(server.launch)
    assert server.asked == ["/ping", "/health"] * 2


def test_nobody_listens() -> None:
    assert not server_process._answers(SimpleNamespace(server_args={}, url="http://127.0.0.1:9"))
