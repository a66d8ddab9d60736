"""Vocabularies: equal, padded, renamed, of another family, split differently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sgl_spec.draft.retokenise import KEEP, MOST, DraftText, Translator
from sgl_spec.draft.spelling import byte_alphabet, spellings
from sgl_spec.draft.textbridge import TextBridge
from sgl_spec.draft.vocab import (
    SAMPLE_TEXT,
    SharedVocabulary,
    VocabularyMap,
    check_same_vocabulary,
    map_vocabularies,
    relate,
    shared_by_file,
    vocab_size,
)
from sgl_spec.errors import VocabularyError

CORPUS = [SAMPLE_TEXT, "the quick brown fox jumps over the lazy dog 🙂 naïve\n\tdef f(x): return x\n"] * 2


def byte_level(size: int, special: tuple[str, ...] = ("<eos>",)) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[0])


def sentencepiece(size: int) -> Any:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")


class Renamed:
    """A tokenizer whose vocabulary was edited."""

    def __init__(self, inner: Any, changes: dict[int, str | None], special: tuple[int, ...] = ()) -> None:
        self._inner, self._changes = inner, changes
        self.all_special_ids = [*inner.all_special_ids, *special]

    def get_vocab(self) -> dict[str, int]:
        by_id: dict[int, str | None] = {i: t for t, i in self._inner.get_vocab().items()}
        return {t: i for i, t in (by_id | self._changes).items() if t is not None}


@pytest.fixture(scope="module")
def large() -> Any:
    return byte_level(500)


@pytest.fixture(scope="module")
def small() -> Any:
    return byte_level(420, special=("<end>", "<pad>"))


def test_equal_vocabularies_need_no_mask(large: Any) -> None:
    n = len(large)
    shared = check_same_vocabulary(large, large, n, n)
    assert shared.allowed(None) is None
    assert shared.allowed([3, 5]) == [3, 5]
    assert list(shared.columns) == list(range(n))


@pytest.mark.parametrize(("rows", "columns"), [(640, 704), (704, 640), (500, 500)])
def test_padding_is_accepted_and_its_tail_masked(large: Any, rows: int, columns: int) -> None:
    n = len(large)
    shared = check_same_vocabulary(large, large, rows, columns)
    assert list(shared.columns) == list(range(n))
    assert list(shared.blocked) == list(range(n, columns))
    assert ("masked" in shared.sentence()) == (columns > n)
    if columns > n:
        assert shared.allowed(None) == list(range(n))
        assert shared.allowed([3, n]) == [3]


def test_another_vocabulary_is_refused_with_sizes_and_ids(large: Any, small: Any) -> None:
    with pytest.raises(VocabularyError) as error:
        check_same_vocabulary(large, small, 640, 512)
    message = str(error.value)
    assert f"target {len(large)} tokens in 640 rows, draft {len(small)} tokens in 512 rows" in message
    assert "0: '<eos>' against '<end>'" in message
    assert "draft_vocabulary='auto'" in message


def test_a_renamed_special_token_is_listed(large: Any) -> None:
    draft = Renamed(large, {0: "<end>"})
    with pytest.raises(VocabularyError, match=r"1 special tokens differently .*0: '<eos>' against '<end>'"):
        check_same_vocabulary(large, draft, 600, 600)


def test_a_renamed_ordinary_token_is_listed(large: Any) -> None:
    with pytest.raises(VocabularyError, match="first differing ids: 300"):
        check_same_vocabulary(large, Renamed(large, {300: "other"}), 600, 600)


def test_chat_tokens_of_the_target_alone_need_rows_in_the_draft(large: Any) -> None:
    n = len(large)
    target = Renamed(large, {n: "<chat>"}, special=(n,))
    assert check_same_vocabulary(target, large, n + 8, n + 8).columns[-1] == n
    with pytest.raises(VocabularyError, match=rf"lacks 1 of the target's tokens .*{n}: '<chat>' against None"):
        check_same_vocabulary(target, large, n + 8, n)


def test_a_draft_that_lacks_ordinary_tokens_is_refused(large: Any) -> None:
    with pytest.raises(VocabularyError, match="lacks 1 of the target's tokens"):
        check_same_vocabulary(large, Renamed(large, {499: None}), 500, 500)


def test_tokens_of_the_draft_alone_are_blocked(large: Any) -> None:
    n = len(large)
    shared = check_same_vocabulary(large, Renamed(large, {n: "extra"}), n, n + 1)
    assert list(shared.blocked) == [n]


def test_missing_tokenizers_are_refused(large: Any) -> None:
    with pytest.raises(VocabularyError, match="skip_tokenizer_init"):
        relate(None, large, 600, 600, mode="auto")


def test_every_byte_has_a_character() -> None:
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert byte_alphabet()["Ġ"] == 0x20


def test_both_families_spell_in_bytes(large: Any) -> None:
    for tokenizer in (large, sentencepiece(420)):
        spelled = spellings(tokenizer)
        ids = tokenizer.encode("the fox: naïve", add_special_tokens=False)
        text = b"".join(s for i in ids if isinstance(s := spelled[i], bytes))
        assert text.decode() == "the fox: naïve"
        assert spelled[tokenizer.eos_token_id] == tokenizer.eos_token


def test_wordpiece_is_refused() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "play": 1, "##ing": 2, "##ed": 3}, unk_token="[UNK]"))
    with pytest.raises(VocabularyError, match="WordPiece"):
        spellings(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]"))


@pytest.mark.parametrize("family", ["byte-level", "sentencepiece"])
def test_the_intersection_pairs_equal_spellings_one_to_one(large: Any, small: Any, family: str) -> None:
    draft = small if family == "byte-level" else sentencepiece(420)
    found = map_vocabularies(large, draft, 640, 512)
    mine, other = spellings(large), spellings(draft)
    for i, j in zip(found.target_ids.tolist(), found.draft_ids.tolist(), strict=True):
        assert mine[i] == other[j] or (i, j) == (large.eos_token_id, draft.eos_token_id)
    assert len(set(found.draft_ids.tolist())) == len(found.draft_ids)
    assert large.eos_token_id in found.target_ids
    assert found.target_ids.max() < len(large)


def test_the_report_names_what_is_lost(large: Any, small: Any) -> None:
    found = map_vocabularies(large, small, 640, 512)
    sample = large.encode(SAMPLE_TEXT, add_special_tokens=False)
    assert found.text_share == np.mean([i in set(found.target_ids.tolist()) for i in sample])
    assert f"share {len(found.target_ids)} tokens" in found.sentence()
    assert f"at least {1 - found.text_share:.1%}" in found.sentence()


def test_text_bridge_guesses_are_the_targets_own_cut(large: Any, small: Any) -> None:
    bridge = TextBridge(large, small, 640)
    context = large.encode("the quick brown", add_special_tokens=False)
    answer = small.encode(" fox jumps", add_special_tokens=False)
    assert context + bridge.guesses(context, answer, 20) == large.encode("the quick brown fox jumps")
    assert len(bridge.guesses(context, answer, 1)) == 1
    assert bridge.guesses(context, [], 4) == []


def test_text_bridge_never_gives_special_or_unknown_ids(large: Any, small: Any) -> None:
    bridge = TextBridge(large, small, 300)
    context = [t for t in large.encode("a b", add_special_tokens=False) if t < 300]
    for text in ("<eos> the quick", "🙂", " the quick brown", "\n\t"):
        guesses = bridge.guesses(context, small.encode(text, add_special_tokens=False), 9)
        assert all(0 < g < 300 for g in guesses)
    half = small.encode("🙂", add_special_tokens=False)[:-1]
    assert bridge.guesses(context, half, 4) == []


def test_relate_finds_the_best_relation(large: Any, small: Any) -> None:
    assert isinstance(relate(large, large, 640, 704), SharedVocabulary)
    assert isinstance(relate(large, small, 640, 512, mode="auto"), VocabularyMap)
    assert isinstance(relate(large, small, 640, 512, mode="text"), TextBridge)
    with pytest.raises(VocabularyError, match="not the target's"):
        relate(large, small, 640, 512)


def test_relate_goes_through_text_when_few_tokens_are_shared(large: Any) -> None:
    chars = Tokenizer(models.WordLevel({"zz": 0, "the": 1, "<unk>": 2}, unk_token="<unk>"))
    draft = PreTrainedTokenizerFast(tokenizer_object=chars, unk_token="<unk>")
    assert isinstance(relate(large, draft, 640, 3, mode="auto"), TextBridge)


def test_sizes_come_from_the_text_part_of_a_config() -> None:
    class Part:
        vocab_size = 7

    class Whole:
        vocab_size = 9

        def get_text_config(self) -> Part:
            return Part()

    assert (vocab_size(Whole()), vocab_size(Part()), vocab_size(5)) == (7, 7, 5)


def test_a_draft_reads_the_text_in_its_own_tokens(large: Any, small: Any) -> None:
    translator = Translator(large, small, 512)
    text = "the quick brown fox: naïve 🙂\n\tdef f(x): return x"
    ids = large.encode(text, add_special_tokens=False)
    assert small.decode(translator.encode(ids)) == text
    end = [large.eos_token_id]
    assert translator.encode(ids[:3] + end + ids[3:5])[-1] < 512
    assert translator.encode(end) == [small.eos_token_id]


@pytest.mark.parametrize("family", ["byte-level", "sentencepiece"])
def test_a_growing_text_is_the_same_text(large: Any, small: Any, family: str) -> None:
    draft = small if family == "byte-level" else sentencepiece(420)
    spelled = spellings(draft)
    whole = large.encode(SAMPLE_TEXT * 3, add_special_tokens=False)
    text = DraftText(Translator(large, draft, 512))
    for end in [150, *range(160, len(whole), 17), len(whole)]:
        ids = text.ids(whole[:end])
        text.ids(whole[:end] + [300] * KEEP)  # guesses that are taken back
        said = b"".join(s for i in ids if isinstance(s := spelled[i], bytes))
        assert said.decode(errors="ignore") == large.decode(whole[:end]).rstrip("\ufffd")


def test_an_empty_text_has_a_token(large: Any, small: Any) -> None:
    assert DraftText(Translator(large, small, 512)).ids([]) == [0]


def test_text_bridge_where_there_is_nothing_to_say(large: Any, small: Any) -> None:
    bridge = TextBridge(large, small, len(large))
    assert bridge.guesses(large.encode("the quick"), [small.convert_tokens_to_ids("<end>")], 4) == []
    eos = large.eos_token_id
    brown = small.encode(" brown")
    assert bridge.guesses([eos], brown, 9) == large.encode(" brown")  # a special token is no part of the text
    e_acute = large.encode("é")
    assert len(e_acute) == 2  # half a character: no text can be cut there, at any length of tail
    assert bridge.guesses(e_acute[:1] * 8, brown, 9) == []


def test_text_bridge_stops_at_what_the_target_does_not_know(large: Any, small: Any) -> None:
    """The target's embedding has fewer rows than its tokenizer has tokens."""
    before, answer = large.encode("the quick"), small.encode(" brown fox")
    whole = TextBridge(large, small, len(large)).guesses(before, answer, 9)
    rows = max(whole)
    assert rows > max(before)
    known = TextBridge(large, small, rows).guesses(before, answer, 9)
    assert known == whole[: whole.index(rows)]


def test_a_special_token_without_a_counterpart_is_left_out(large: Any, small: Any) -> None:
    translator = Translator(byte_level(500, special=("<eos>", "<tool>")), small, len(small))
    assert translator.encode([1]) == []
    assert translator.encode([0]) == [small.convert_tokens_to_ids("<end>")]


def test_a_long_word_is_cut_where_it_must_be(large: Any, small: Any) -> None:
    word = large.encode("x" * 400)
    assert not any(large.convert_ids_to_tokens(i).startswith("Ġ") for i in word)
    assert len(word) > MOST + KEEP
    text = DraftText(Translator(large, small, len(small)))
    assert small.decode(text.ids(word)) == "x" * 400
    assert small.decode(text.ids([*word, *large.encode(" end")])) == "x" * 400 + " end"


def test_a_name_that_begins_anew_is_read_anew(large: Any, small: Any) -> None:
    text = DraftText(Translator(large, small, len(small)))
    first, second = (large.encode(f"{letter} b c d e f g h i j k l m n o p " * 12) for letter in "az")
    text.ids(first)
    assert small.decode(text.ids(second)) == large.decode(second)


def test_vocabularies_with_nothing_in_common(large: Any) -> None:
    alien = Renamed(large, {i: f"☃{i}" for i in range(len(large))})
    with pytest.raises(VocabularyError, match="None of the draft's"):
        map_vocabularies(large, alien, len(large), len(large))


@pytest.mark.parametrize("held", ["same", "text", "size", "nothing"])
def test_folders_that_share_a_tokenizer_file(tmp_path: Path, held: str) -> None:
    folders = [tmp_path / "target", tmp_path / "draft"]
    for at, folder in enumerate(folders):
        folder.mkdir()
        (folder / "tokenizer.json").write_text("{}" if held != "text" else "{}" + " " * at)
        (folder / "config.json").write_text(json.dumps({"vocab_size": 9 + at if held == "size" else 9}))
    if held == "nothing":
        (folders[1] / "tokenizer.json").unlink()
    relation = shared_by_file(*map(str, folders))
    assert (relation is not None) == (held == "same")
    assert relation is None or (relation.target_size, relation.draft_size) == (9, 9)


def test_byte_tokens_that_are_ordinary_spell_their_byte() -> None:
    class Words:
        def get_vocab(self) -> dict[str, int]:
            return {"▁a": 0, "<0x41>": 1, "<0xE9>": 2, "é": 3}

    assert spellings(Words()) == {0: b" a", 1: b"A", 2: b"\xe9", 3: "é".encode()}
