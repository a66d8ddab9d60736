"""A page in headless Chromium, spoken to over its DevTools protocol: what it shows, what it complains about."""

import asyncio
import base64
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_S = 60.0


@dataclass
class Seen:
    """One visit: the value of the expression, the console's lines, the picture."""

    value: Any = None
    complaints: list[str] = field(default_factory=list)
    picture: bytes = b""


@contextmanager
def browser(folder: Path) -> Iterator[str]:
    """Start Chromium with `folder` as its profile; yield the address of its DevTools."""
    assert BINARY is not None
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    process = subprocess.Popen(
        [BINARY, *options, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    port, deadline = folder / "DevToolsActivePort", time.monotonic() + PATIENCE_S
    try:
        while not (port.is_file() and port.read_text().count("\n")):
            assert process.poll() is None, "Chromium ended while starting"
            assert time.monotonic() < deadline, "Chromium did not start"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port.read_text().splitlines()[0]}"
    finally:
        process.terminate()
        process.wait()


def visit(tools: str, url: str, width: int, scheme: str, ready: str, value: str, script: str = "0") -> Seen:
    """Open `url`, run `script`, wait until `ready` is true, return the JavaScript expression `value`."""
    return asyncio.run(_visit(tools, url, width, scheme, ready, value, script))


async def _visit(tools: str, url: str, width: int, scheme: str, ready: str, value: str, script: str) -> Seen:
    seen, numbers = Seen(), iter(range(1, 1 << 30))
    async with aiohttp.ClientSession() as session:
        tab = await (await session.put(f"{tools}/json/new?about:blank")).json()
        async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:

            async def call(method: str, **given: Any) -> Any:
                number = next(numbers)
                await socket.send_json({"id": number, "method": method, "params": given})
                while True:
                    message = await socket.receive_json(timeout=PATIENCE_S)
                    if message.get("id") == number:
                        assert "error" not in message, message
                        return message["result"]
                    if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                        seen.complaints.append(str(message["params"]))

            async def evaluate(expression: str) -> Any:
                found = await call("Runtime.evaluate", expression=expression, returnByValue=True)
                return found["result"].get("value")

            for domain in ("Page", "Runtime", "Log"):
                await call(f"{domain}.enable")
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            await call("Emulation.setEmulatedMedia", features=features)
            await call("Emulation.setScrollbarsHidden", hidden=True)
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
            await call("Emulation.setDeviceMetricsOverride", **size)
            await call("Page.navigate", url=url)
            deadline = time.monotonic() + PATIENCE_S
            while await evaluate("document.readyState") != "complete":
                await asyncio.sleep(0.1)
            await evaluate(script)
            while not await evaluate(ready):
                assert time.monotonic() < deadline, f"never: {ready}; {seen.complaints}"
                await asyncio.sleep(0.1)
            seen.value = await evaluate(value)
            shot = await call("Page.captureScreenshot", captureBeyondViewport=True)
            seen.picture = base64.b64decode(shot["data"])
            await call("Page.close")
    return seen
