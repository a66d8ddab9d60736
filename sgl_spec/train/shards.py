"""Shards of training text: token ids, and the target's most probable next tokens at each answer position.

A shard is one `.npz` of whole sequences, written under a temporary name and renamed, so that an interrupted
run leaves only complete shards. Sequences are found again by their key: a repeated run skips them.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sgl_spec.errors import ConfigError


@dataclass(frozen=True)
class Sequence:
    """One prompt with the target's answer.

    `tokens` int32 `[n]` holds the prompt's `start` ids, then the answer. Row i of `top_ids` int32 and
    `top_logp` fp32, `[n - start, k]`, is the target's distribution for token `start + i`, best first.
    """

    key: str
    task: str
    temperature: float
    start: int
    tokens: np.ndarray
    top_ids: np.ndarray
    top_logp: np.ndarray


def write_shard(folder: Path, sequences: list[Sequence]) -> Path:
    """Store `sequences` as the next shard of `folder`, ids in 16 bits where they fit, logs of p in fp16."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"shard-{len(list(folder.glob('shard-*.npz'))):05d}.npz"
    facts = [
        {
            "key": s.key,
            "task": s.task,
            "temperature": s.temperature,
            "start": s.start,
            "length": len(s.tokens),
        }
        for s in sequences
    ]
    tokens = np.concatenate([s.tokens for s in sequences])
    top_ids = np.concatenate([s.top_ids for s in sequences])
    small = np.uint16 if max(tokens.max(), top_ids.max()) < 1 << 16 else np.uint32
    scratch = folder / f".{path.name}.{os.getpid()}"
    try:
        with scratch.open("wb") as handle:
            np.savez(
                handle,
                facts=np.frombuffer(json.dumps(facts).encode(), np.uint8),
                tokens=tokens.astype(small),
                top_ids=top_ids.astype(small),
                top_logp=np.concatenate([s.top_logp for s in sequences]).astype(np.float16),
            )
        scratch.replace(path)
    except OSError as error:
        raise ConfigError(
            f"corpus folder {folder} cannot be written ({error.strerror}); free some disk space and run the same "
            "command again: the texts stored so far are kept."
        ) from error
    finally:
        scratch.unlink(missing_ok=True)
    return path


def read_shards(folder: Path) -> Iterator[Sequence]:
    """All sequences of all shards of `folder`, in the order in which they were written."""
    for path in sorted(folder.glob("shard-*.npz")):
        with np.load(path) as shard:
            facts = json.loads(shard["facts"].tobytes())
            tokens, top_ids, top_logp = (shard[name] for name in ("tokens", "top_ids", "top_logp"))
        token_end = row_end = 0
        for fact in facts:
            token_end += fact["length"]
            rows = fact["length"] - fact["start"]
            row_end += rows
            yield Sequence(
                key=fact["key"],
                task=fact["task"],
                temperature=fact["temperature"],
                start=fact["start"],
                tokens=tokens[token_end - fact["length"] : token_end].astype(np.int32),
                top_ids=top_ids[row_end - rows : row_end].astype(np.int32),
                top_logp=top_logp[row_end - rows : row_end].astype(np.float32),
            )


def stored_keys(folder: Path) -> set[str]:
    """The keys of all sequences that `folder` already holds."""
    keys: set[str] = set()
    for path in folder.glob("shard-*.npz"):
        with np.load(path) as shard:
            keys.update(fact["key"] for fact in json.loads(shard["facts"].tobytes()))
    return keys
