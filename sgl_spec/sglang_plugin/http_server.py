"""What we add to SGLang's HTTP server: the prediction of chat requests, and the live page with its figures.

Only the process that serves HTTP imports that server, so everything waits for that import.
"""

import os
import sys
import time
from importlib import resources
from types import ModuleType
from typing import Any

from sgl_spec.errors import UpstreamError
from sgl_spec.sglang_plugin import compat
from sgl_spec.sglang_plugin.growing_sleeps import GrowingSleeps
from sgl_spec.sglang_plugin.import_hooks import after_import

MODULE = "sglang.srt.entrypoints.http_server"
APP_PATH = "SGLANG_HTTP_SERVER_APP_PATH"  # where SGLang's further HTTP processes look for the application
APP = "sgl_spec.sglang_plugin.http_app:app"
PAGE = "/sgl-spec/"
FIGURES = "/sgl-spec/stats"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


def install() -> None:
    """Add to the HTTP server as soon as it is imported, and have further HTTP processes do so too."""
    os.environ.setdefault(APP_PATH, APP)
    if MODULE in sys.modules:
        add(sys.modules[MODULE])
    else:
        after_import(MODULE, add)


def add(server: ModuleType) -> None:
    """Add our chat handler, the page, and the page's figures to the server's application."""
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.utils import auth

    compat.check(compat.TOUCHED_BY_HTTP)

    def chat_class(manager: Any) -> type:
        from sgl_spec.sglang_plugin.chat_prediction import PredictingChat

        return PredictingChat

    TokenizerManager.serving_chat_class = property(chat_class)
    auth.decide_request_auth = page_needs_no_key(auth.decide_request_auth, auth.AuthDecision)
    add_page(server)
    if getattr(server, "time", None) is not time:
        raise UpstreamError(f"{MODULE} does not sleep through its name `time`: install sglang==0.5.23")
    server.time = GrowingSleeps()  # type: ignore[attr-defined]


def page_needs_no_key(original: Any, decision: type) -> Any:
    """Around SGLang's decision on a key: a browser cannot send one for the page, which holds no figures."""

    def decide(*, method: str, path: str, **others: Any) -> Any:
        if path in (PAGE, PAGE.rstrip("/")):
            return decision(allowed=True)
        return original(method=method, path=path, **others)

    return decide


def add_page(server: ModuleType) -> None:
    """Serve the page and, under the server's own key, the figures that it shows."""
    from fastapi.responses import HTMLResponse

    text = resources.files("sgl_spec").joinpath("page/index.html").read_text(encoding="utf-8")

    @server.app.get(PAGE, include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(text, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})

    @server.app.get(FIGURES)
    async def figures() -> dict[str, Any]:
        """Statistics of sgl-spec, one entry per scheduler; None for one that runs without it."""
        manager = server.get_global_state().tokenizer_manager
        states = await manager.get_internal_state()
        return {"model": manager.served_model_name, "schedulers": [state.get("sgl_spec") for state in states]}
