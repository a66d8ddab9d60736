"""A conversation in a file: read, checked, written again after each turn so that a kill loses no turn."""

import json
import os
from pathlib import Path
from typing import Any

from sgl_spec.config import shown
from sgl_spec.errors import ConfigError

ROLES = ("user", "assistant")
Message = dict[str, str]


def check_messages(messages: Any, where: str) -> tuple[str, list[Message]]:
    """Split chat messages into (system prompt, turns); raises ConfigError, `where` begins its sentence.

    The turns alternate between user and assistant, as the front end's templates need it.
    """
    if not isinstance(messages, list):
        raise ConfigError(f"{where} must be a list of messages, not {shown(messages)}.")
    system = ""
    turns: list[Message] = []
    for at, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if role not in ("system", *ROLES) or not isinstance(content, str):
            raise ConfigError(f"{where}, message {at}, needs a role (system, user, assistant) and a text as content.")
        if role == "system":
            if at:
                raise ConfigError(f"{where}, message {at}, is a system message: only the first may be one.")
            system = content
        elif role != ROLES[len(turns) % 2]:
            raise ConfigError(f"{where}, message {at}, is by {role}: user and assistant must take turns.")
        else:
            turns.append({"role": role, "content": content})
    return system, turns


def load(path: Path) -> tuple[str, list[Message]]:
    """Return (system prompt, complete turns) of a saved conversation; an absent file is an empty one."""
    if not path.exists():
        return "", []
    try:
        messages = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise ConfigError(
            f"history={path} is not JSON: name a conversation saved by this program, or a new file."
        ) from None
    system, turns = check_messages(messages, f"history={path}")
    if len(turns) % 2:
        raise ConfigError(f"history={path} ends with an unanswered message: remove it and ask it again.")
    return system, turns


def save(path: Path, system: str, turns: list[Message]) -> None:
    """Write the conversation; the old file stays whole until the new one is complete."""
    messages = [{"role": "system", "content": system}, *turns] if system else turns
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with part.open("w", encoding="utf-8") as out:
        json.dump(messages, out, ensure_ascii=False, indent=1)
        out.flush()
        os.fsync(out.fileno())
    part.replace(path)
