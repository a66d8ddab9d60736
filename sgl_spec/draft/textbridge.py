"""Guesses that travel as text, between tokenizers that split it differently.

The target's tokens are decoded and encoded again for the draft, the draft's answer the other way round
(string-level exact match, SLEM: Timor et al. 2025). A guess that was cut anew has no probability under
the draft, so it is a point mass; verification stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TAILS = (
    8,
    3,
    1,
)  # target tokens encoded together with the answer, so that the cut between them is the target's
CONTEXT = 512  # target tokens that the draft is shown


class TextBridge:
    """Translates context to the draft and its answer to the target. Never returns an unknown target id."""

    def __init__(
        self, target_tokenizer: Any, draft_tokenizer: Any, target_size: int, draft_size: int
    ) -> None:
        self._target, self._draft = target_tokenizer, draft_tokenizer
        self._draft_size = draft_size
        special = set(getattr(target_tokenizer, "all_special_ids", None) or ())
        ids = target_tokenizer.get_vocab().values()
        self._allowed = {i for i in ids if i < target_size and i not in special}

    def draft_context(self, target_ids: Sequence[int]) -> list[int]:
        """Return draft ids of the text of the last CONTEXT target ids."""
        text = self._target.decode(list(target_ids[-CONTEXT:]))
        ids = self._draft.encode(text, add_special_tokens=False)
        return [i for i in ids if i < self._draft_size]

    def guesses(self, target_ids: Sequence[int], answer_ids: Sequence[int], limit: int) -> list[int]:
        """Return up to `limit` target ids that spell the draft's answer after `target_ids`.

        Empty when the target's own cut of the text cannot be told (a token across the seam).
        """
        answer = self._draft.decode(list(answer_ids)).partition("\ufffd")[0]  # without a cut-off character
        if not answer:
            return []
        for n in TAILS:
            tail = list(target_ids[-n:])
            cut = self._target.encode(self._target.decode(tail) + answer, add_special_tokens=False)
            if cut[: len(tail)] == tail:
                return self._known(cut[len(tail) :], limit)
        return []

    def _known(self, ids: Sequence[int], limit: int) -> list[int]:
        """Return the leading ids that the target may be given."""
        known: list[int] = []
        for i in ids[:limit]:
            if i not in self._allowed:
                break
            known.append(i)
        return known
