"""A draft with its own tokens inside the engine, over toy models: what it guesses is known to the target and exact."""

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sgl_spec.draft.own_kv import OwnKv
from sgl_spec.draft.retokenise import Translator
from sgl_spec.draft.textbridge import TextBridge
from sgl_spec.draft.vocab import VocabularyMap, map_vocabularies
from sgl_spec.sglang_plugin.chains import ChainOrder, Sampling
from sgl_spec.sglang_plugin.foreign_draft import ForeignDraft
from tests.unit.test_draft_vocab import byte_level
from tests.unit.toy_passes import ToyPass, toy_logits

TEXT = "the quick brown fox jumps over the lazy dog"
WARM = Sampling(temperature=0.9, top_k=1 << 30, top_p=1.0, min_p=0.0)
WIDTH, SLOTS = 96, 240


@pytest.fixture(scope="module")
def target() -> Any:
    return byte_level(500)


@pytest.fixture(scope="module")
def small() -> Any:
    return byte_level(420, special=("<end>", "<pad>"))


def draft_of(target: Any, small: Any, text: bool) -> ForeignDraft:
    draft = object.__new__(ForeignDraft)
    table = torch.zeros(4, WIDTH, dtype=torch.int32)
    draft.relation = TextBridge(target, small, 500) if text else map_vocabularies(target, small, 500, 420)
    draft.translator, draft.texts = Translator(target, small, 420), OrderedDict()
    draft.kv, draft.fed, draft.hot_ids = OwnKv(table, SLOTS), None, None
    columns = None
    if isinstance(draft.relation, VocabularyMap):
        found = draft.relation
        draft.hot_ids, columns = torch.from_numpy(found.target_ids), torch.from_numpy(found.draft_ids)
        draft.fed = dict(zip(found.target_ids.tolist(), found.draft_ids.tolist(), strict=True))
    draft.forward = ToyPass(table, SLOTS, 420, 1, columns)  # type: ignore[assignment]
    draft.draft_runner = SimpleNamespace(model_config=SimpleNamespace(context_len=WIDTH))
    return draft


def order(rid: str, text: list[int], sampling: Sampling | None = None, count: int = 3) -> ChainOrder:
    return ChainOrder(rid, 1, 0, text, count, 0.0, sampling, committed=len(text) - 1)


@pytest.mark.parametrize("sampling", [None, WARM])
def test_guesses_have_the_renormalised_law_of_the_text(target: Any, small: Any, sampling: Sampling | None) -> None:
    draft, generator = draft_of(target, small, text=False), torch.Generator().manual_seed(0)
    text = target.encode(TEXT, add_special_tokens=False)
    rng = torch.Generator().manual_seed(1)
    for _ in range(8):
        chains = draft.chains([order("a", list(text), sampling)], generator)
        read = draft.texts["a"].ids(text)
        assert small.decode(read) == target.decode(text).replace("\ufffd", "")
        for j, token in enumerate(chains.tokens[0]):
            logits = toy_logits(read + [draft.fed[t] for t in chains.tokens[0][:j]], 420, 1)
            inside = logits[torch.from_numpy(draft.relation.draft_ids)]
            if sampling is None:
                assert token == int(draft.hot_ids[inside.argmax()])
            else:
                torch.testing.assert_close(chains.laws[0][j], torch.softmax(inside / 0.9, -1))
        draft.kv.check_integrity()
        kept = int(torch.randint(0, 4, (), generator=rng))
        text += chains.tokens[0][:kept] + target.encode(" dog", add_special_tokens=False)[:1]


def test_words_travel_as_text_and_only_known_ids_come_back(target: Any, small: Any) -> None:
    draft = draft_of(target, small, text=True)
    text = target.encode(TEXT, add_special_tokens=False)
    seen = 0
    for n in range(3, len(text)):
        chains = draft.chains([order("a", text[:n], WARM)], torch.Generator())
        assert all(0 < token < 500 for token in chains.tokens[0])
        assert len(chains.tokens[0]) <= 3
        assert chains.laws[0] == [None] * len(chains.tokens[0])
        seen += len(chains.tokens[0])
        draft.kv.check_integrity()
    assert seen > 0


def test_a_text_that_does_not_fit_gets_no_guesses(target: Any, small: Any) -> None:
    draft = draft_of(target, small, text=False)
    long = target.encode(TEXT * 20, add_special_tokens=False)
    short = target.encode(TEXT, add_special_tokens=False)
    chains = draft.chains([order("long", long), order("short", short)], torch.Generator())
    assert chains.tokens[0] == []
    assert len(chains.tokens[1]) == 3


def test_forks_read_their_common_text_once(target: Any, small: Any) -> None:
    draft = draft_of(target, small, text=False)
    text = target.encode(TEXT, add_special_tokens=False)
    draft.chains([order("a", text)], torch.Generator())
    before = draft.forward.read
    draft.chains([order("b", text)], torch.Generator())
    assert draft.forward.read - before <= 3
