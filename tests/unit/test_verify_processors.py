import numpy as np
import pytest
import torch

from sgl_spec.verify import processors
from sgl_spec.verify.processors import Filters, Penalties, Rows, adjust_logits, keep, target_probs

ALL = 1 << 30


def filters(rows, *, temperature=1.0, top_k=ALL, top_p=1.0, min_p=0.0):
    def column(value, dtype=torch.float32):
        return torch.tensor(value if isinstance(value, list) else [value] * rows, dtype=dtype)

    return Filters(column(temperature), column(top_k, torch.int64), column(top_p), column(min_p))


def test_filters_by_hand():
    p = torch.tensor([[0.1, 0.4, 0.2, 0.3]] * 5, dtype=torch.float64)
    top_k = torch.tensor([2, ALL, ALL, 3, ALL])
    top_p = torch.tensor([1.0, 0.6, 1.0, 0.3, 1.0])
    min_p = torch.tensor([0.0, 0.0, 0.6, 0.0, 0.0])
    kept = keep(p, top_k, top_p, min_p)
    assert (kept > 0).int().tolist() == [[0, 1, 0, 1], [0, 1, 0, 1], [0, 1, 0, 1], [0, 1, 0, 0], [1, 1, 1, 1]]
    assert torch.allclose(kept.sum(-1), torch.ones(5, dtype=torch.float64))
    assert torch.allclose(kept[0], torch.tensor([0, 4 / 7, 0, 3 / 7], dtype=torch.float64))


def plain_reference(row, top_k, top_p, min_p):
    """The rule of SGLang's torch sampler, written out for one row."""
    order = np.argsort(-row, kind="stable")
    ranked = row[order].copy()
    before = np.cumsum(ranked) - ranked
    ranked[np.arange(len(row)) >= top_k] = 0.0
    ranked[before > top_p] = 0.0
    ranked[ranked < ranked[0] * min_p] = 0.0
    out = np.zeros_like(row)
    out[order] = ranked
    return out / out.sum()


@pytest.mark.parametrize("leading", [4, 16, 1024])
def test_partial_sort_equals_whole_sort(monkeypatch, leading):
    monkeypatch.setattr(processors, "LEADING", leading)
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.full(60, 0.3), size=40)
    top_k = rng.choice([1, 3, 20, 59, ALL], 40)
    top_p = rng.choice([0.05, 0.5, 0.9, 0.999, 1.0], 40)
    min_p = rng.choice([0.0, 0.02, 0.3], 40)
    got = keep(torch.tensor(rows), torch.tensor(top_k), torch.tensor(top_p), torch.tensor(min_p))
    for i in range(40):
        expected = plain_reference(rows[i], top_k[i], top_p[i], min_p[i])
        assert np.allclose(got[i].numpy(), expected, atol=1e-12), i


def test_greedy_rows_are_one_hot_beside_sampled_ones():
    logits = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0]])
    p = target_probs(logits, filters(2, temperature=[1.0, 2.0], top_k=[1, ALL]))
    assert p[0].tolist() == [0.0, 1.0, 0.0]
    assert torch.allclose(p[1], (logits[1] / 2).softmax(-1))


def test_logits_are_left_alone_by_target_probs():
    logits = torch.randn(3, 9)
    before = logits.clone()
    target_probs(logits, filters(3, temperature=0.7, top_p=0.8))
    assert torch.equal(logits, before)


class Dense:
    """One request's penalties as SGLang keeps them: full rows, updated token by token."""

    def __init__(self, vocabulary, penalties):
        self.penalties = penalties
        self.frequency = torch.zeros(vocabulary)
        self.presence = torch.zeros(vocabulary)
        self.scaling = torch.ones(vocabulary)
        self.emitted = 0

    def feed(self, token):
        self.frequency[token] += torch.tensor(self.penalties.frequency)
        self.presence[token] = self.penalties.presence
        self.scaling[token] = self.penalties.repetition
        self.emitted += 1

    def apply(self, logits):
        additive = torch.zeros_like(logits)
        additive -= self.frequency
        additive -= self.presence
        if self.emitted < self.penalties.min_new_tokens:
            additive[list(self.penalties.stop_ids)] = float("-inf")
        logits = logits + additive
        return torch.where(logits < 0, logits * self.scaling, logits / self.scaling)


@pytest.mark.parametrize(
    "knobs",
    [
        {"frequency": 0.3},
        {"presence": -0.7},
        {"repetition": 1.3},
        {"repetition": 2.0},
        {"min_new_tokens": 5, "stop_ids": (1, 4)},
        {"frequency": 0.1, "presence": 0.2, "repetition": 0.8, "min_new_tokens": 4, "stop_ids": (0,)},
    ],
)
def test_each_row_counts_its_own_history(knobs):
    """Bit for bit what decoding token by token would have seen."""
    generator = torch.Generator().manual_seed(5)
    committed, guesses = [3, 3, 7], [3, 8, 3, 2]
    logits = torch.randn(len(guesses) + 1, 10, generator=generator)
    state = Penalties(**knobs)
    state.add(committed)
    dense = Dense(10, state)
    for token in committed:
        dense.feed(token)
    got = adjust_logits(logits.clone(), Rows([0], [len(guesses)], [guesses]), [state])
    for row in range(len(guesses) + 1):
        assert torch.equal(got[row], dense.apply(logits[row])), row
        if row < len(guesses):
            dense.feed(guesses[row])
    assert state.emitted == len(committed)
    assert state.counts[8] == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_penalties_are_float32_whatever_the_default_is(dtype):
    state = Penalties(frequency=0.1, repetition=1.3)
    state.add([0, 0, 2])
    expected = adjust_logits(torch.ones(1, 4), Rows([0], [0], [[]]), [state])
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        got = adjust_logits(torch.ones(1, 4, dtype=torch.float32), Rows([0], [0], [[]]), [state])
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(got, expected)


def test_requests_of_a_ragged_batch_do_not_mix():
    logits = torch.zeros(6, 5)
    rows = Rows([0, 3, 4], [2, 0, 1], [[1, 2], [], [4]])
    state = Penalties(presence=1.0)
    bias = torch.zeros(3, 5)
    bias[2, 0] = 9.0
    adjust_logits(logits, rows, [state, None, None], bias=bias)
    assert logits[0].tolist() == [0, 0, 0, 0, 0]
    assert logits[1].tolist() == [0, -1, 0, 0, 0]
    assert logits[2].tolist() == [0, -1, -1, 0, 0]
    assert logits[3].tolist() == [0, 0, 0, 0, 0]
    assert logits[4:, 0].tolist() == [9, 9]


def test_grammar_masks_after_penalties_and_before_bias():
    seen = []

    def grammar(logits):
        seen.append(logits.clone())
        logits[:, 1] = float("-inf")

    logits = torch.zeros(1, 3)
    state = Penalties(presence=0.5)
    state.add([2])
    bias = torch.tensor([[0.0, 50.0, 0.0]])
    adjust_logits(logits, Rows([0], [0], [[]]), [state], grammar, bias)
    assert seen[0].tolist() == [[0.0, 0.0, -0.5]]
    assert logits.tolist() == [[0.0, float("-inf"), -0.5]]


def test_frequency_adds_up_as_sglang_does():
    state = Penalties(frequency=0.1)
    state.add([0] * 1000)
    summed = torch.zeros(1)
    for _ in range(1000):
        summed += torch.tensor(0.1)
    got = adjust_logits(torch.zeros(1, 2), Rows([0], [0], [[]]), [state])
    assert got[0, 0] == -summed[0]


def test_inactive_penalties_cost_nothing():
    assert not Penalties().active
    assert Penalties(min_new_tokens=1).active


def test_rows_that_end_within_the_sorted_head_are_not_sorted_whole(monkeypatch):
    monkeypatch.setattr(processors, "LEADING", 3)
    monkeypatch.setattr(torch.Tensor, "sort", None)  # the whole sort of long rows
    p = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    top_k, top_p, min_p = torch.tensor([2, ALL]), torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.0])
    kept = keep(p, top_k, top_p, min_p)
    assert torch.allclose(kept, torch.tensor([[0, 4 / 7, 0, 3 / 7], [0.25] * 4], dtype=torch.float64))


def test_two_filters_at_their_edges():
    """A rank whose mass before it equals top_p stays, and so does one whose p equals min_p times the largest."""
    p = torch.tensor([[0.5, 0.25, 0.15, 0.1]] * 3, dtype=torch.float64)
    kept = keep(p, torch.tensor([4, ALL, 3]), torch.tensor([0.75, 1.0, 1.0]), torch.tensor([0.0, 0.5, 0.0]))
    assert (kept > 0).int().tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]]


def test_rows_without_a_filter_are_returned_bit_for_bit():
    p = torch.rand(4, 7, generator=torch.Generator().manual_seed(8))  # of any sum: nothing is renormalised
    none, zero = torch.ones(4), torch.zeros(4)
    assert torch.equal(keep(p, torch.tensor([ALL, 7, 8, ALL]), none, zero), p)
    cut = keep(p, torch.tensor([6, ALL, ALL, ALL]), torch.tensor([1.0, 0.99, 1.0, 1.0]), torch.tensor([0, 0, 1e-9, 0]))
    assert torch.allclose(cut[:3].sum(-1), torch.ones(3))
    assert torch.equal(cut[3], p[3])


def test_two_ranks_are_no_greedy_row():
    logits = torch.tensor([[1.0, 3.0, 2.0]] * 3)
    p = target_probs(logits, filters(3, top_k=[0, 1, 2]))
    assert p[:2].tolist() == [[0.0, 1.0, 0.0]] * 2
    assert torch.allclose(p[2], torch.tensor([0.0, 0.7310586, 0.2689414]))


def test_a_batch_that_says_it_has_no_filter_or_greedy_row_is_taken_at_its_word():
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    given = filters(1, top_k=1)
    given.any_filter = given.any_greedy = False
    assert torch.allclose(target_probs(logits, given), logits.softmax(-1))


def test_a_greedy_row_needs_no_filter():
    logits = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0]])
    given = filters(2, top_k=[1, ALL])
    given.any_filter = False
    p = target_probs(logits, given)
    assert p[0].tolist() == [0.0, 1.0, 0.0]
    assert torch.equal(p[1], logits[1].softmax(-1))


def test_guesses_past_the_length_are_no_history():
    logits = torch.zeros(2, 4)
    adjust_logits(logits, Rows([0], [1], [[1, 2, 3]]), [Penalties(presence=1.0)])
    assert logits.tolist() == [[0, 0, 0, 0], [0, -1, 0, 0]]
