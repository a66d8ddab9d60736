"""Guesses that travel as text, between tokenizers that split it differently.

The draft reads the target's text in its own tokens (`retokenise`), and its answer comes back as text that the
target's tokenizer cuts (string-level exact match, SLEM: Timor et al. 2025). A guess that was cut anew has no
probability under the draft, so it is a point mass; verification stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sgl_spec.draft.spelling import Spelling, spellings

TAILS = (8, 3, 1)  # target tokens encoded with the answer, so that the cut between them is the target's


class TextBridge:
    """Translates a draft's answer to the target. Never returns an id that the target does not know."""

    def __init__(self, target_tokenizer: Any, draft_tokenizer: Any, target_size: int) -> None:
        self._target = target_tokenizer
        self._spelled = {i: s for i, s in spellings(target_tokenizer).items() if i < target_size}
        self._answers = spellings(draft_tokenizer)

    def sentence(self) -> str:
        """Return the report line for start-up."""
        return (
            "Draft and target split text differently: guesses travel as text, without probabilities, "
            "so sampled requests accept fewer of them."
        )

    def guesses(self, target_ids: Sequence[int], answer_ids: Sequence[int], limit: int) -> list[int]:
        """Return up to `limit` target ids that spell the draft's answer after `target_ids`.

        Empty when the target's own cut of the text cannot be told (a token across the seam).
        """
        answer = _text(answer_ids, self._answers)
        if not answer:
            return []
        for n in TAILS:
            tail = list(target_ids[-n:])
            while tail and not isinstance(self._spelled.get(tail[0]), bytes):
                del tail[0]  # a special token is no text
            before = _text(tail, self._spelled)
            cut = self._target.encode(before + answer, add_special_tokens=False)
            if cut[: len(tail)] == tail:
                return self._known(cut[len(tail) :], limit)
        return []

    def _known(self, ids: Sequence[int], limit: int) -> list[int]:
        """Return the leading ids that the target may be given."""
        known: list[int] = []
        for i in ids[:limit]:
            if not isinstance(self._spelled.get(i), bytes):
                break
            known.append(i)
        return known


def _text(ids: Sequence[int], spelled: dict[int, Spelling]) -> str:
    """Return what ids spell, up to the first special token or the first character that is cut off."""
    run = bytearray()
    for i in ids:
        spelling = spelled.get(i)
        if not isinstance(spelling, bytes):
            break
        run += spelling
    return run.decode(errors="replace").partition("\ufffd")[0]
