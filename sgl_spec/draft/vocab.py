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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

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

    @property
    def identical(self) -> bool:
        """Whether every draft column may be drawn and the sizes agree: nothing to mask."""
        return self.target_size == self.draft_size and not len(self.blocked)

    def mask(self, logits: Any) -> Any:
        """Set blocked columns of `logits` [..., draft_size] (numpy or torch) to -inf, in place."""
        if len(self.blocked):
            logits[..., self.blocked] = -np.inf
        return logits


def check_same_vocabulary(
    target_tokenizer: Any,
    draft_tokenizer: Any,
    target_config: Any,
    draft_config: Any,
    *,
    allow_renamed: bool = False,
) -> SharedVocabulary:
    """Return how two models share their ids, or raise VocabularyError that says where they do not.

    Configs: a Hugging Face config or its `vocab_size`. `allow_renamed` accepts special tokens that carry
    different names under the same id.
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
    if differing and not allow_renamed:
        raise VocabularyError(
            f"Draft and target name {len(differing)} special tokens differently ({sizes}): "
            f"{_listed(differing, target, draft)}. If they mean the same, allow renamed special tokens."
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
class Overlap:
    """What a pair of vocabularies has in common."""

    shared: int  # tokens spelled alike
    target_share: float  # of the target's tokens
    draft_share: float  # of the draft's tokens
    text_share: float  # of the tokens of a sample of the target's text: an upper bound on the acceptance rate

    def sentence(self) -> str:
        """Return the report line for start-up."""
        return (
            f"Draft and target share {self.shared} tokens ({self.target_share:.1%} of the target's, "
            f"{self.draft_share:.1%} of the draft's), which make up {self.text_share:.1%} of sample text: "
            f"at least {1 - self.text_share:.1%} of the positions cannot be guessed."
        )


@dataclass(frozen=True, slots=True)
class VocabularyMap:
    """Token-level intersection of two vocabularies: n tokens, target_ids[i] is spelled as draft_ids[i]."""

    target_size: int
    draft_size: int
    target_ids: NDArray[np.int64]  # [n], ascending
    draft_ids: NDArray[np.int64]  # [n]
    to_draft: NDArray[np.int64]  # [target_size]: what to feed the draft for each target id
    exact: NDArray[np.bool_]  # [target_size]: False where to_draft is only the last piece of the token's text

    def columns(self, logits: Any) -> Any:
        """Return `logits` [..., draft_size] of the shared tokens only, [..., n], column i = target_ids[i].

        Temperature, top-k and softmax belong after it: then q sums to 1 on the intersection.
        """
        return logits[..., self.draft_ids]

    def renormalise(self, q: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Return q [..., draft_size] restricted to the intersection and scaled to sum to 1, [..., n].

        A row without mass there becomes uniform: any q is lossless, and this one can still be drawn from.
        """
        inside = q[..., self.draft_ids]
        mass = inside.sum(axis=-1, keepdims=True)
        return np.where(mass > 0, inside / np.where(mass > 0, mass, 1), 1 / len(self.draft_ids))

    def mass(self, q: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Return the probability that q [..., draft_size] puts on the intersection, [...]."""
        return q[..., self.draft_ids].sum(axis=-1)

    def overlap(self, sample_ids: Sequence[int]) -> Overlap:
        """Return the overlap, measured on target ids of sample text."""
        shared = len(self.target_ids)
        within = np.isin(np.asarray(sample_ids, dtype=np.int64), self.target_ids)
        text_share = float(within.mean()) if len(within) else 0.0
        return Overlap(shared, shared / self.target_size, shared / self.draft_size, text_share)


def map_vocabularies(
    target_tokenizer: Any, draft_tokenizer: Any, target_config: Any, draft_config: Any
) -> VocabularyMap:
    """Return the token-level intersection; raises VocabularyError when it is empty."""
    rows, columns = vocab_size(target_config), vocab_size(draft_config)
    target = {i: s for i, s in spellings(target_tokenizer).items() if i < rows}
    draft = {i: s for i, s in spellings(draft_tokenizer).items() if i < columns}
    by_spelling = {s: i for i, s in sorted(draft.items())}  # of duplicates the last, see _one_to_one
    pairs = {i: by_spelling[s] for i, s in target.items() if s in by_spelling}
    for role in ("eos_token_id", "bos_token_id"):  # the same meaning under whatever name
        mine, other = getattr(target_tokenizer, role, None), getattr(draft_tokenizer, role, None)
        if mine is not None and other is not None and mine < rows and other < columns:
            pairs = {i: j for i, j in pairs.items() if j != other or i == mine} | {mine: other}
    pairs = _one_to_one(pairs)
    if not pairs:
        raise VocabularyError(
            f"None of the draft's {len(draft)} tokens is spelled like one of the target's {len(target)}: "
            "use another draft."
        )
    to_draft = np.zeros(rows, dtype=np.int64)
    exact = np.zeros(rows, dtype=bool)
    for i, spelling in target.items():
        if i in pairs:
            to_draft[i], exact[i] = pairs[i], True
        else:
            to_draft[i] = _last_piece(draft_tokenizer, spelling, columns)
    target_ids = np.array(sorted(pairs), dtype=np.int64)
    draft_ids = np.array([pairs[i] for i in sorted(pairs)], dtype=np.int64)
    return VocabularyMap(rows, columns, target_ids, draft_ids, to_draft, exact)


def relate(
    target_tokenizer: Any,
    draft_tokenizer: Any,
    target_config: Any,
    draft_config: Any,
    *,
    mode: Literal["auto", "same", "tokens", "text"] = "same",
    allow_renamed: bool = False,
) -> SharedVocabulary | VocabularyMap | TextBridge:
    """Return how a draft speaks to its target: by the relation `mode`, or with `auto` the best that holds."""
    if mode in ("auto", "same"):
        try:
            return check_same_vocabulary(
                target_tokenizer, draft_tokenizer, target_config, draft_config, allow_renamed=allow_renamed
            )
        except VocabularyError:
            if mode == "same" or target_tokenizer is None or draft_tokenizer is None:
                raise
    if mode in ("auto", "tokens"):
        found = map_vocabularies(target_tokenizer, draft_tokenizer, target_config, draft_config)
        share = found.overlap(target_tokenizer.encode(SAMPLE_TEXT, add_special_tokens=False)).text_share
        if mode == "tokens" or share >= MIN_TEXT_SHARE:
            return found
    return TextBridge(target_tokenizer, draft_tokenizer, vocab_size(target_config), vocab_size(draft_config))


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


def _last_piece(tokenizer: Any, spelling: bytes | str, size: int) -> int:
    """Return the draft's last token of a text that it has no token for: the one its next guess depends on."""
    text = spelling if isinstance(spelling, str) else spelling.decode(errors="replace")
    ids = [i for i in tokenizer.encode(text, add_special_tokens=False) if i < size]
    return ids[-1] if ids else 0


def _listed(ids: list[int], target: dict[int, str], draft: dict[int, str]) -> str:
    shown = [f"{i}: {target.get(i)!r} against {draft.get(i)!r}" for i in ids[:SHOWN]]
    return ", ".join(shown) + (f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else "")
