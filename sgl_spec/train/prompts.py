"""The prompts of this package: three tasks, expanded from templates, and a held-out split.

`data/<task>.json` holds groups (templates times topics) for training and a list of held-out prompts whose
topics no training prompt uses. Both splits are fixed: the same call gives the same list on each machine.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

TASKS = ("chat", "code", "summarization")
_DATA = Path(__file__).parent / "data"


def training_prompts(task: str) -> list[str]:
    """All training prompts of `task`, in a fixed order that mixes templates and topics."""
    prompts = {
        template.replace("{x}", topic)
        for group in _task(task)["groups"]
        for template in group["templates"]
        for topic in group["topics"]
    }
    return sorted(prompts - set(held_out_prompts(task)), key=_shuffle_key)


def held_out_prompts(task: str) -> list[str]:
    """The prompts of `task` on which drafts are judged, never trained."""
    return list(_task(task)["held_out"])


def summary_request(document: str) -> str:
    """A request to summarise `document`, its wording chosen by the text itself."""
    templates = _task("summarization")["requests"]
    return templates[int(_shuffle_key(document), 16) % len(templates)].replace("{x}", document)


def _shuffle_key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _task(task: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((_DATA / f"{task}.json").read_text(encoding="utf-8"))
    return value
