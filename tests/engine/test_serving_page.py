"""The live page in headless Chromium: the server's figures, light and dark, narrow and wide, with and without a key."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine import chromium
from tests.engine.conftest import start

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.skipif(chromium.BINARY is None, reason="there is no Chromium here"),
]

LIVE = "document.getElementById('state').textContent === 'live' && speeds.length > 1"
SHOWN = """(() => {
  const rows = (id) => [...document.querySelectorAll('#' + id + ' tr')].slice(1)
    .map((row) => [...row.children].map((cell) => cell.textContent));
  return {
    sources: rows('sources'), programs: rows('programs'), slowest: rows('slowest'),
    positions: document.querySelectorAll('#positions rect').length,
    ground: getComputedStyle(document.body).backgroundColor,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    cut: [...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth).length,
  };
})()"""
KEY = "open sesame"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: Any) -> Iterator[str]:
    with chromium.browser(tmp_path_factory.mktemp("chromium")) as address:
        yield address


def keep(picture: bytes, name: str) -> None:
    """Write a screenshot where SGL_SPEC_SCREENSHOTS says; nowhere without it."""
    folder = os.environ.get("SGL_SPEC_SCREENSHOTS")
    if folder:
        (Path(folder) / f"{name}.png").write_bytes(picture)


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}%"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_shows_what_the_statistics_say(demo_server: Any, tools: str, scheme: str, width: int) -> None:
    demo_server.generate("Repeat: one two three. one two three. one two three. one", {"program": "page"})
    stats = demo_server.runtime.stats()
    seen = chromium.visit(tools, f"{demo_server.url}/sgl-spec/", width, scheme, LIVE, SHOWN)
    keep(seen.picture, f"page-{scheme}-{width}")
    assert seen.complaints == []
    assert seen.value["overflow"] <= 0
    assert seen.value["cut"] == 0
    assert seen.value["ground"] == {"light": "rgb(246, 247, 248)", "dark": "rgb(17, 20, 23)"}[scheme]
    assert seen.value["positions"] == len(stats["conditional_acceptance_by_position"])
    by_source = {row[0]: row[1:] for row in seen.value["sources"]}
    assert by_source.pop("all") == [
        str(stats["num_draft_tokens"]),
        str(stats["num_accepted_draft_tokens"]),
        percent(stats["draft_acceptance_rate"]),
    ]
    assert by_source == {
        name: [str(s["proposed"]), str(s["accepted"]), percent(s["draft_acceptance_rate"])]
        for name, s in stats["by_source"].items()
    }
    programs = {row[0]: row[1:5] for row in seen.value["programs"]}
    names = ("requests", "rounds", "num_draft_tokens", "num_accepted_draft_tokens")
    assert programs["page"] == [str(stats["programs"]["page"][name]) for name in names]
    assert programs["all"] == [str(stats[name]) for name in names]
    seconds = [float(row[3]) for row in seen.value["slowest"]]
    assert seconds
    assert seconds == sorted(seconds, reverse=True)


def test_the_page_asks_for_the_servers_key(tools: str) -> None:
    with_key = start(None, api_key=KEY, max_total_tokens=2048)
    server = next(with_key)
    try:
        assert httpx.get(f"{server.url}/sgl-spec/stats").status_code == httpx.codes.UNAUTHORIZED
        assert httpx.post(f"{server.url}/generate", json={"text": "x"}).status_code == httpx.codes.UNAUTHORIZED
        enter = f"document.getElementById('key-text').value = '{KEY}';document.getElementById('key').requestSubmit();"
        seen = chromium.visit(tools, f"{server.url}/sgl-spec/", 390, "light", LIVE, SHOWN, enter)
        assert seen.value["overflow"] <= 0
        assert seen.value["programs"][-1][0] == "all"
    finally:
        with_key.close()
