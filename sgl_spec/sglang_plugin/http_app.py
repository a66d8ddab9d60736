"""SGLang's HTTP application in one of several HTTP processes (`tokenizer_worker_num` above 1), with our plugins.

SGLang loads plugins in every process that it starts but these: without them requests would go unchecked and
predictions unread. It names the application to them by a path, which `http_server.install` lets point here.
"""

from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.srt.entrypoints.http_server import app  # noqa: E402 - the plugins wait for its import

__all__ = ["app"]
