"""The cost file: what the throughput controller measured, kept over a restart.

One JSON document: costs and acceptance, with a key that names the models and the machine they were measured
on. A file of another key, or one that is damaged, is an error with a remedy, never silently ignored.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sgl_spec.control.mixed import MixedController
from sgl_spec.control.throughput import ThroughputController
from sgl_spec.errors import ConfigError

FORMAT = 2
LARGEST = 64 << 20  # bytes; a real file has well under one MiB


def save_state(controller: MixedController, path: str | Path, key: str) -> bool:
    """Write the file, whole or not at all; False if the default policy has nothing to keep."""
    throughput = controller.parts[controller.default]
    if not isinstance(throughput, ThroughputController):
        return False
    document = {"format": FORMAT, "key": key, **throughput.to_dict()}
    target = Path(path)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(document))
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return True


def load_state(controller: MixedController, path: str | Path, key: str) -> bool:
    """Take over a saved file; False if there is none yet. Raises `ConfigError`."""
    throughput = controller.parts[controller.default]
    source = Path(path)
    if not isinstance(throughput, ThroughputController) or not source.exists():
        return False
    document = _read(source)
    if document.get("key") != key:
        raise ConfigError(
            f"cost_file={source} was measured for {str(document.get('key'))[:200]!r}, not for {key!r}: "
            "name another file for this pair of models, or delete it."
        )
    try:
        throughput.load(document)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"cost_file={source} is damaged: delete it, it is made anew.") from None
    return True


def _read(source: Path) -> dict[str, Any]:
    try:
        content = source.read_bytes() if source.stat().st_size <= LARGEST else None
    except OSError as error:
        raise ConfigError(f"cost_file={source} cannot be read ({error.strerror}): name another.") from None
    if content is None:
        raise ConfigError(f"cost_file={source} is too large to be one: name another file.")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise ConfigError(f"cost_file={source} is damaged: delete it, it is made anew.") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConfigError(f"cost_file={source} is no cost file of this version: name another file.")
    return document
