"""The target's text in the tokens of a draft with another vocabulary, kept up to date as the text grows.

Tokens are spelled in bytes, the bytes are encoded by the draft's tokenizer, and special tokens become those of
the same name or role. Encoding whole texts each round would cost more than a small draft's forward, so all but
the end is encoded once: the cut is made before a space or line break, where most tokenizers cut anyway. A cut
elsewhere makes the draft's reading unusual and its guesses worse, never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sgl_spec.draft.spelling import special_names, spellings

KEEP = 32  # target tokens at the end that are encoded anew each time: they may still be taken back
MOST = 96  # the same, at most
ROLES = ("bos_token_id", "eos_token_id")


class Translator:
    """Encodes target ids for the draft. `draft_size`: ids that the draft's embedding has."""

    def __init__(self, target_tokenizer: Any, draft_tokenizer: Any, draft_size: int) -> None:
        self._spelled = spellings(target_tokenizer)
        self._draft = draft_tokenizer
        self._size = draft_size
        self._special = special_pairs(target_tokenizer, draft_tokenizer)
        first = draft_tokenizer.encode("a")[:1]
        bos = getattr(draft_tokenizer, "bos_token_id", None)
        self.head = first if bos is not None and first == [bos] else []  # what the draft's texts begin with

    def encode(self, target_ids: Sequence[int]) -> list[int]:
        """Return draft ids of a piece of text; bytes that are no complete character are left out."""
        ids: list[int] = []
        run = bytearray()
        for i in target_ids:
            spelling = self._spelled.get(i, b"")
            if isinstance(spelling, bytes):
                run += spelling
                continue
            ids += self._text(run)
            run.clear()
            if i in self._special:
                ids.append(self._special[i])
        return ids + self._text(run)

    def breaks_before(self, target_id: int) -> bool:
        """Whether text may be cut before this token without changing how it is encoded, as a rule."""
        spelling = self._spelled.get(target_id, b"")
        return not isinstance(spelling, bytes) or spelling[:1] in (b" ", b"\n")

    def _text(self, run: bytearray) -> list[int]:
        if not run:
            return []
        ids = self._draft.encode(run.decode(errors="ignore"), add_special_tokens=False)
        return [i for i in ids if i < self._size]


class DraftText:
    """One request's text as the draft reads it. The last KEEP target tokens may change between calls."""

    def __init__(self, translator: Translator) -> None:
        self._translator = translator
        self._ids: list[int] = []
        self._done: list[int] = []  # target tokens that `_ids` stands for

    def ids(self, text: Sequence[int]) -> list[int]:
        """Return the draft's ids of `text`, the request's target ids from the first on; never empty."""
        if list(text[: len(self._done)]) != self._done:  # another request took this one's name
            self._ids, self._done = [], []
        if len(text) - len(self._done) > MOST:
            cut = self._cut(text)
            self._ids += self._translator.encode(text[len(self._done) : cut])
            self._done = list(text[:cut])
        ids = self._ids + self._translator.encode(text[len(self._done) :])
        head = self._translator.head
        return ids if ids[: len(head)] == head and ids else head + ids or [0]

    def _cut(self, text: Sequence[int]) -> int:
        last = len(text) - KEEP
        for at in range(last, len(self._done), -1):
            if self._translator.breaks_before(text[at]):
                return at
        return last


def special_pairs(target_tokenizer: Any, draft_tokenizer: Any) -> dict[int, int]:
    """Return the draft's special token for each of the target's that it has, by name or by role."""
    names = {name: i for i, name in special_names(draft_tokenizer).items()}
    pairs = {i: names[name] for i, name in special_names(target_tokenizer).items() if name in names}
    for role in ROLES:
        mine, other = getattr(target_tokenizer, role, None), getattr(draft_tokenizer, role, None)
        if mine is not None and other is not None:
            pairs[mine] = other
    return pairs
