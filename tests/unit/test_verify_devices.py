"""Everything of `verify/` stays on the device of its inputs: `meta` holds no numbers, but refuses mixtures too."""

import pytest
import torch

from sgl_spec.verify.accept import Coins, DraftLaw, accept_chain, accept_greedy
from sgl_spec.verify.processors import Filters, Penalties, Rows, adjust_logits, target_probs
from sgl_spec.verify.seeded import murmur3, seeded_tokens

META = torch.device("meta")


def law(*shape):
    return torch.empty(shape, dtype=torch.float64, device=META)


def whole(*shape):
    return torch.empty(shape, dtype=torch.int64, device=META)


def test_meta_refuses_a_mixture():
    with pytest.raises(RuntimeError, match=r"device meta|same device"):
        law(3) + torch.zeros(3, dtype=torch.float64)


def test_greedy_and_seeded():
    for found in accept_greedy(whole(2, 3), whole(2), whole(2, 4)):
        assert found.device == META
    assert murmur3(whole(2, 1), whole(2, 1), whole(1, 9)).device == META
    assert seeded_tokens(law(2, 9), whole(2), whole(2)).device == META
    assert seeded_tokens(law(2, 5), whole(2), whole(2), whole(5)).device == META


@pytest.mark.parametrize(
    "q",
    [
        None,
        DraftLaw(),
        DraftLaw(law(2, 3, 9)),
        DraftLaw(law(2, 3, 9), point=torch.empty(2, 3, dtype=torch.bool, device=META)),
        DraftLaw(law(2, 3, 5), whole(5)),
    ],
)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_chains(q, ragged, given):
    coins = Coins(law(2, 3), law(2)) if given else None
    p, starts = (law(7, 9), whole(2)) if ragged else (law(2, 4, 9), None)
    accepted, tokens = accept_chain(p, whole(2, 3), whole(2), q, starts=starts, coins=coins)
    assert (accepted.device, accepted.shape) == (META, (2,))
    assert (tokens.device, tokens.shape) == (META, (2, 4))


def test_logits_and_their_filters():
    logits = torch.empty(3, 9, device=META)
    state = Penalties(frequency=0.1, presence=0.1, repetition=1.1, min_new_tokens=9, stop_ids=(1,))
    state.add([2, 3])
    rows = Rows([0, 2], [1, 0], [[4], []])
    assert adjust_logits(logits, rows, [state, None], bias=torch.empty(2, 9, device=META)).device == META
    column = torch.empty(3, device=META)
    assert target_probs(logits, Filters(column, whole(3), column, column)).device == META
