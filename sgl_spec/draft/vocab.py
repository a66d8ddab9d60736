"""Drafts whose token ids are not, or not quite, the target's.

Three relations, from the best to the loosest; `relate` finds the best that holds:

- `SharedVocabulary`: the same tokens under the same ids. Embedding tables may be padded to different sizes
  (151,936 against 152,064); columns that are no token of the target are blocked.
- `VocabularyMap`: different ids, many tokens spelled alike. The draft's distribution is restricted to the
  intersection and renormalised there (token-level intersection, TLI: Timor et al. 2025). The
  result is a proper q over target ids, so speculative sampling with it is exact at any temperature.
- `TextBridge` (textbridge.py): the tokenizers split text differently; guesses travel as text.

Invariant: what leaves this module as a guess is an id below the target's vocabulary size that its tokenizer
knows. It holds because every column that can be drawn comes from the target's own list of tokens.
"""

from __future__ import annotations

import filecmp
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sgl_spec.draft.retokenise import special_pairs
from sgl_spec.draft.spelling import special_names, spellings
from sgl_spec.draft.textbridge import TextBridge
from sgl_spec.errors import VocabularyError

SHOWN = 5  # differing ids named in a message
MIN_TEXT_SHARE = 0.5  # below this the intersection cannot express the target's text: go through text instead

SAMPLE_TEXT = """Could you explain why the sky looks blue, and suggest three short books about light?
1. Light is scattered by the air; blue, with its shorter wavelength, more than red.
def mean(values: list[float]) -> float:
    \"\"\"Return the average of the values, 0.0 for none.\"\"\"
    return sum(values) / len(values) if values else 0.0
{"name": "Ada", "year": 1843, "tags": ["engine", "notes"]}
The council met on Tuesday to discuss the new bridge. Costs have risen by 12% since spring, the report says,
but most members still support the plan. A final vote is expected in October.
"""


@dataclass(frozen=True, slots=True)
class SharedVocabulary:
    """Target and draft use the same ids."""

    target_size: int  # rows of the target's head
    draft_size: int  # columns of the draft's logits
    blocked: NDArray[np.int64]  # draft columns that are no token of the target: their q must be 0
    columns: NDArray[np.int64]  # the other draft columns, ascending; each is the target id of the same number

    def allowed(self, hot_ids: list[int] | None) -> list[int] | None:
        """Return the ids to cut the draft's head to, None for no cut. `hot_ids`: those that its head has anyway."""
        if not len(self.blocked):
            return hot_ids
        columns = self.columns.tolist()
        return columns if hot_ids is None else sorted(set(hot_ids) & set(columns))

    def sentence(self) -> str:
        """Return the report line for start-up."""
        tail = f"; {len(self.blocked)} columns of the draft are no token of the target and masked"
        return f"Target and draft share their {len(self.columns)} token ids" + (tail if len(self.blocked) else "") + "."


def check_same_vocabulary(
    target_tokenizer: Any,
    draft_tokenizer: Any,
    target_config: Any,
    draft_config: Any,
) -> SharedVocabulary:
    """Return how two models share their ids, or raise VocabularyError that says where they do not.

    Configs: a Hugging Face config or its `vocab_size`.
    """
    if target_tokenizer is None or draft_tokenizer is None:
        raise VocabularyError(
            "Target and draft cannot be compared without their tokenizers: start without skip_tokenizer_init."
        )
    rows, columns = vocab_size(target_config), vocab_size(draft_config)
    target = {i: t for t, i in target_tokenizer.get_vocab().items() if i < rows}
    draft = {i: t for t, i in draft_tokenizer.get_vocab().items() if i < columns}
    sizes = f"target {len(target)} tokens in {rows} rows, draft {len(draft)} tokens in {columns} rows"
    special = special_names(target_tokenizer).keys() | special_names(draft_tokenizer).keys()

    differing = [i for i in sorted(target.keys() & draft.keys()) if target[i] != draft[i]]
    if any(i not in special for i in differing):
        raise VocabularyError(
            f"The draft's vocabulary is not the target's ({sizes}); first differing ids: "
            f"{_listed(differing, target, draft)}. Use a draft of the target's family, distil one, "
            "or let sgl-spec map the vocabularies (draft_vocabulary='auto')."
        )
    if differing:
        raise VocabularyError(
            f"Draft and target name {len(differing)} special tokens differently ({sizes}): "
            f"{_listed(differing, target, draft)}. Let sgl-spec map them (draft_vocabulary='auto')."
        )
    missing = sorted(target.keys() - draft.keys())
    if any(i not in special or i >= columns for i in missing):
        raise VocabularyError(
            f"The draft lacks {len(missing)} of the target's tokens ({sizes}); first: "
            f"{_listed(missing, target, draft)}. Use a draft of the target's family, distil one, "
            "or let sgl-spec map the vocabularies (draft_vocabulary='auto')."
        )
    known = np.zeros(columns, dtype=bool)
    known[[i for i in target if i < columns]] = True
    return SharedVocabulary(rows, columns, np.flatnonzero(~known), np.flatnonzero(known))


@dataclass(frozen=True, slots=True)
class VocabularyMap:
    """Token-level intersection of two vocabularies: n tokens, target_ids[i] is spelled as draft_ids[i].

    The draft's head is cut to `draft_ids`; temperature, top-k and softmax come after it, so q sums to 1 on the
    intersection.
    """

    target_size: int
    draft_size: int
    target_ids: NDArray[np.int64]  # [n], ascending
    draft_ids: NDArray[np.int64]  # [n]
    text_share: float  # of the tokens of a sample of the target's text: an upper bound on the acceptance rate

    def sentence(self) -> str:
        """Return the report line for start-up: what the pair has in common, and what is lost."""
        shared = len(self.target_ids)
        return (
            f"Draft and target share {shared} tokens ({shared / self.target_size:.1%} of the target's, "
            f"{shared / self.draft_size:.1%} of the draft's), which make up {self.text_share:.1%} of sample text: "
            f"at least {1 - self.text_share:.1%} of the positions cannot be guessed."
        )


def map_vocabularies(
    target_tokenizer: Any, draft_tokenizer: Any, target_config: Any, draft_config: Any
) -> VocabularyMap:
    """Return the token-level intersection; raises VocabularyError when it is empty."""
    rows, columns = vocab_size(target_config), vocab_size(draft_config)
    target = {i: s for i, s in spellings(target_tokenizer).items() if i < rows}
    draft = {i: s for i, s in spellings(draft_tokenizer).items() if i < columns}
    by_spelling = {s: i for i, s in sorted(draft.items())}  # of duplicates the last, see _one_to_one
    pairs = {i: by_spelling[s] for i, s in target.items() if s in by_spelling}
    for mine, other in special_pairs(target_tokenizer, draft_tokenizer).items():  # whatever their names
        if mine < rows and other < columns:
            pairs = {i: j for i, j in pairs.items() if j != other or i == mine} | {mine: other}
    pairs = _one_to_one(pairs)
    if not pairs:
        raise VocabularyError(
            f"None of the draft's {len(draft)} tokens is spelled like one of the target's {len(target)}: "
            "use another draft."
        )
    target_ids = np.array(sorted(pairs), dtype=np.int64)
    draft_ids = np.array([pairs[i] for i in sorted(pairs)], dtype=np.int64)
    sample = target_tokenizer.encode(SAMPLE_TEXT, add_special_tokens=False)
    share = float(np.isin(np.asarray(sample, dtype=np.int64), target_ids).mean()) if sample else 0.0
    return VocabularyMap(rows, columns, target_ids, draft_ids, share)


def relate(
    target_tokenizer: Any,
    draft_tokenizer: Any,
    target_config: Any,
    draft_config: Any,
    *,
    mode: Literal["auto", "same", "tokens", "text"] = "same",
) -> SharedVocabulary | VocabularyMap | TextBridge:
    """Return how a draft speaks to its target: by the relation `mode`, or with `auto` the best that holds."""
    if mode in ("auto", "same"):
        try:
            return check_same_vocabulary(target_tokenizer, draft_tokenizer, target_config, draft_config)
        except VocabularyError:
            if mode == "same" or target_tokenizer is None or draft_tokenizer is None:
                raise
    if mode in ("auto", "tokens"):
        found = map_vocabularies(target_tokenizer, draft_tokenizer, target_config, draft_config)
        if mode == "tokens" or found.text_share >= MIN_TEXT_SHARE:
            return found
    return TextBridge(target_tokenizer, draft_tokenizer, vocab_size(target_config))


def shared_by_file(target: str, draft: str) -> SharedVocabulary | None:
    """Return the relation of two local folders with the same tokenizer.json and as many ids, without loading them.

    None where that is not so, or one is the name of a model on a hub.
    """
    folders = [Path(target), Path(draft)]
    if not all((folder / name).is_file() for folder in folders for name in ("tokenizer.json", "config.json")):
        return None
    sizes = [json.loads((folder / "config.json").read_text(encoding="utf-8")).get("vocab_size") for folder in folders]
    if sizes[0] is None or sizes[0] != sizes[1]:
        return None
    mine, other = (folder / "tokenizer.json" for folder in folders)
    if mine.samefile(other) or filecmp.cmp(mine, other, shallow=False):
        return SharedVocabulary(sizes[0], sizes[1], np.zeros(0, np.int64), np.arange(sizes[1]))
    return None


def vocab_size(config: Any) -> int:
    """Return a config's `vocab_size` (that of its text part for multimodal models); an int is one itself."""
    if isinstance(config, int):
        return config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return int(text.vocab_size)


def _one_to_one(pairs: dict[int, int]) -> dict[int, int]:
    """Keep one target id for each draft id: else a draft probability would count twice.

    It is the greatest, since SentencePiece lists its byte tokens before the characters that they also spell.
    """
    taken = {j: i for i, j in sorted(pairs.items())}
    return {i: j for j, i in taken.items()}


def _listed(ids: list[int], target: dict[int, str], draft: dict[int, str]) -> str:
    shown = [f"{i}: {target.get(i)!r} against {draft.get(i)!r}" for i in ids[:SHOWN]]
    return ", ".join(shown) + (f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else "")
