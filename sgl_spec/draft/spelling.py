"""How tokens are spelled: the bytes that each id of a tokenizer stands for.

Two tokenizers write the same text in different ways: byte-level BPE writes a space as "Ġ" and each byte as a
printable character, SentencePiece writes "▁" and "<0x0A>". Ids of two vocabularies are comparable once both
are spelled in bytes. Special tokens stand for no text and are spelled by their name.
"""

from __future__ import annotations

import re
from typing import Any

from sgl_spec.errors import VocabularyError

Spelling = bytes | str  # text, or the name of a special token

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}


def byte_alphabet() -> dict[str, int]:
    """Return the byte that each character of byte-level BPE stands for (Radford et al. 2019, GPT-2).

    Printable bytes stand for themselves, the others for the characters from 256 on, in order.
    """
    hidden = [b for b in range(256) if b not in _PRINTABLE]
    return {chr(b): b for b in _PRINTABLE} | {chr(256 + i): b for i, b in enumerate(hidden)}


def special_names(tokenizer: Any) -> dict[int, str]:
    """Return the name of each special token by id: added tokens that are marked so, and the named roles."""
    vocabulary = tokenizer.get_vocab()
    special = set(getattr(tokenizer, "all_special_ids", None) or ())
    for i, added in (getattr(tokenizer, "added_tokens_decoder", None) or {}).items():
        if getattr(added, "special", False):
            special.add(int(i))
    return {i: token for token, i in vocabulary.items() if i in special}


def spellings(tokenizer: Any) -> dict[int, Spelling]:
    """Return the spelling of every id of a Hugging Face tokenizer.

    Raises VocabularyError for a tokenizer whose tokens do not determine their text (WordPiece).
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    special = special_names(tokenizer)
    added = set((getattr(tokenizer, "get_added_vocab", dict)() or {}).values())
    ordinary = {i: token for token, i in vocabulary.items() if i not in special and i not in added}
    literal: dict[int, Spelling] = {i: t.encode() for t, i in vocabulary.items() if i in added}
    if any(t.startswith("##") and len(t) > 3 and t[2:].isalpha() for t in ordinary.values()) and not any(
        t.startswith(("Ġ", "▁")) for t in ordinary.values()
    ):
        raise VocabularyError(
            f"The tokenizer {_name(tokenizer)} is a WordPiece one, whose tokens do not determine their text: "
            "use a draft with a BPE, Unigram or byte tokenizer."
        )
    alphabet = byte_alphabet()
    byte_level = any("Ġ" in t for t in ordinary.values()) or not any("▁" in t for t in ordinary.values())
    spelled: dict[int, Spelling] = {}
    for i, token in ordinary.items():
        if byte_level and all(c in alphabet for c in token):
            spelled[i] = bytes(alphabet[c] for c in token)
        elif match := _BYTE_TOKEN.fullmatch(token):
            spelled[i] = bytes([int(match[1], 16)])
        else:
            spelled[i] = token.replace("▁", " ").encode()
    return spelled | literal | special


def _name(tokenizer: Any) -> str:
    return repr(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
