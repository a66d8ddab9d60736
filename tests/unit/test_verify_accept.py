import pytest
import torch

from sgl_spec.verify.accept import (
    PAD,
    Coins,
    DraftLaw,
    accept_chain,
    accept_greedy,
    inverse_cdf,
    residual,
    right_guesses,
)


def test_greedy_by_hand():
    drafts = torch.tensor([[5, 6, 7], [5, 9, 7], [1, 2, 3], [5, 6, 7], [0, 0, 0]])
    lens = torch.tensor([3, 3, 3, 2, 0])
    argmax = torch.tensor([[5, 6, 7, 8]] * 5)
    accepted, tokens = accept_greedy(drafts, lens, argmax)
    assert accepted.tolist() == [3, 1, 0, 2, 0]
    assert tokens.tolist() == [
        [5, 6, 7, 8],
        [5, 6, PAD, PAD],
        [5, PAD, PAD, PAD],
        [5, 6, 7, PAD],
        [5, PAD, PAD, PAD],
    ]


def test_greedy_ignores_padding_that_matches():
    accepted, _ = accept_greedy(torch.tensor([[5, 6]]), torch.tensor([0]), torch.tensor([[5, 6, 7]]))
    assert accepted.tolist() == [0]


def test_greedy_without_columns():
    accepted, tokens = accept_greedy(
        torch.zeros(2, 0, dtype=torch.int64), torch.tensor([0, 0]), torch.tensor([[4], [5]])
    )
    assert accepted.tolist() == [0, 0]
    assert tokens.tolist() == [[4], [5]]


def random_batch(generator, batch=6, width=4, vocabulary=11):
    p = torch.rand(batch, width + 1, vocabulary, generator=generator, dtype=torch.float64).softmax(-1)
    q = (3 * torch.rand(batch, width, vocabulary, generator=generator, dtype=torch.float64)).softmax(-1)
    drafts = torch.multinomial(q.view(-1, vocabulary), 1, generator=generator).view(batch, width)
    lens = torch.randint(0, width + 1, (batch,), generator=generator)
    coins = Coins(
        torch.rand(batch, width, generator=generator, dtype=torch.float64),
        torch.rand(batch, generator=generator, dtype=torch.float64),
    )
    return p, q, drafts, lens, coins


def test_ragged_rows_equal_padded_ones():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        p, q, drafts, lens, coins = random_batch(generator)
        padded = accept_chain(p, drafts, lens, DraftLaw(q), coins=coins)
        rows = torch.cat([p[i, : n + 1] for i, n in enumerate(lens.tolist())])
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), (lens + 1).cumsum(0)[:-1]])
        ragged = accept_chain(rows, drafts, lens, DraftLaw(q), starts=starts, coins=coins)
        assert all(torch.equal(one, two) for one, two in zip(padded, ragged, strict=True))


def test_each_request_is_decided_alone():
    generator = torch.Generator().manual_seed(1)
    p, q, drafts, lens, coins = random_batch(generator)
    accepted, tokens = accept_chain(p, drafts, lens, DraftLaw(q), coins=coins)
    for i in range(len(lens)):
        one = slice(i, i + 1)
        alone = accept_chain(
            p[one], drafts[one], lens[one], DraftLaw(q[one]), coins=Coins(coins.accept[one], coins.final[one])
        )
        assert alone[0][0] == accepted[i]
        assert torch.equal(alone[1][0], tokens[i])


def test_padding_holds_anything():
    generator = torch.Generator().manual_seed(2)
    p, q, drafts, lens, coins = random_batch(generator)
    junk = drafts.masked_fill(torch.arange(4) >= lens[:, None], -1)
    assert torch.equal(
        accept_chain(p, drafts, lens, DraftLaw(q), coins=coins)[1],
        accept_chain(p, junk, lens, DraftLaw(q), coins=coins)[1],
    )


def test_a_one_hot_target_is_greedy():
    generator = torch.Generator().manual_seed(3)
    p, q, drafts, lens, coins = random_batch(generator)
    argmax = p.argmax(-1)
    one_hot = torch.nn.functional.one_hot(argmax, p.shape[-1]).double()
    for law in (DraftLaw(q), None):
        accepted, tokens = accept_chain(one_hot, drafts, lens, law, coins=coins)
        expected = accept_greedy(drafts, lens, argmax)
        assert torch.equal(accepted, expected[0])
        assert torch.equal(tokens, expected[1])


def test_generator_makes_it_repeat():
    generator = torch.Generator().manual_seed(4)
    p, q, drafts, lens, _ = random_batch(generator)
    runs = [accept_chain(p, drafts, lens, DraftLaw(q), generator=torch.Generator().manual_seed(9))[1] for _ in range(2)]
    assert torch.equal(*runs)


def test_float32_rows_and_no_columns():
    p = torch.tensor([[[0.25, 0.75]]])
    accepted, tokens = accept_chain(
        p,
        torch.zeros(1, 0, dtype=torch.int64),
        torch.tensor([0]),
        coins=Coins(torch.zeros(1, 0, dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)),
    )
    assert accepted.tolist() == [0]
    assert tokens.tolist() == [[1]]


def test_inverse_cdf_never_returns_an_impossible_token():
    weights = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]] * 4, dtype=torch.float64)
    edges = torch.tensor([0.0, 0.5, 1.0 - 2.0**-53, 0.4999999], dtype=torch.float64)
    assert inverse_cdf(weights, edges).tolist() == [1, 3, 3, 1]


def test_p_equal_q_always_accepts():
    p = torch.full((1, 3, 4), 0.25)
    coins = Coins(torch.full((1, 2), 1.0 - 2.0**-53, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    accepted, _ = accept_chain(p, torch.tensor([[3, 0]]), torch.tensor([2]), DraftLaw(p[:, :2]), coins=coins)
    assert accepted.tolist() == [2]


@pytest.mark.parametrize("guesses", [[], [4], [9], [4, 5, 6], [4, 5, 9], [9, 5, 6], [4, 9, 6]])
def test_the_host_and_the_tensors_accept_the_same(guesses):
    own = [4, 5, 6, 7][: len(guesses) + 1]
    accepted, _ = accept_greedy(
        torch.tensor([guesses], dtype=torch.int64).reshape(1, -1), torch.tensor([len(guesses)]), torch.tensor([own])
    )
    assert right_guesses(guesses, own) == int(accepted[0])


def test_coins_come_from_the_generator_in_double_precision():
    generator = torch.Generator().manual_seed(6)
    p, q, drafts, lens, _ = random_batch(generator, batch=40)
    drawn = torch.rand(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    given = accept_chain(p, drafts, lens, DraftLaw(q), coins=Coins(drawn[:, :4], drawn[:, 4]))
    own = accept_chain(p, drafts, lens, DraftLaw(q), generator=torch.Generator().manual_seed(7))
    assert torch.equal(given[0], own[0])
    assert torch.equal(given[1], own[1])
    assert len(set(given[0].tolist())) > 2


def test_a_rejection_where_p_equals_q_draws_from_p():
    """It has no probability; rounding can still bring it about, and then nothing is left of p - q."""
    p = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
    guesses, at, rejected = torch.zeros(2, 1, dtype=torch.int64), torch.tensor([0, 0]), torch.tensor([True, True])
    q = torch.tensor([[[0.25, 0.75]], [[0.25, 0.75]]], dtype=torch.float64)
    left = residual(p, DraftLaw(q), guesses, at, rejected)
    assert left.tolist() == [[0.25, 0.75], [0.25, 0.0]]


def test_a_point_mass_beside_a_hot_head():
    """Column 0 was guessed without a probability, column 1 drawn from a head over tokens 2 and 0."""
    p = torch.full((1, 3, 3), 1 / 3, dtype=torch.float64)
    law = DraftLaw(torch.tensor([[[0.5, 0.5], [0.9, 0.1]]]), torch.tensor([2, 0]), torch.tensor([[True, False]]))
    for first, second, accepted, emitted in (
        (0.32, 0.36, 2, [1, 2, 0]),  # 0.32 < p = 1/3, 0.36 * 0.9 < 1/3
        (0.34, 0.0, 0, [0, PAD, PAD]),  # p without token 1: a half each for 0 and 2
        (0.32, 0.38, 1, [1, 0, PAD]),  # p - q: token 2 is out, 7/30 of token 0 and 10/30 of token 1
    ):
        coins = Coins(torch.tensor([[first, second]]).double(), torch.tensor([0.1]).double())
        found = accept_chain(p, torch.tensor([[1, 2]]), torch.tensor([2]), law, coins=coins)
        assert (found[0].tolist(), found[1].tolist()) == ([accepted], [emitted])


def test_no_coin_accepts_an_impossible_token():
    p = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]], dtype=torch.float64)
    zero = Coins(torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    for law in (None, DraftLaw(torch.tensor([[[0.5, 0.5]]], dtype=torch.float64))):
        accepted, tokens = accept_chain(p, torch.tensor([[0]]), torch.tensor([1]), law, coins=zero)
        assert (accepted.tolist(), tokens.tolist()) == ([0], [[1, PAD]])
