"""`GreedyHead` names the very index that the head's own numbers have their maximum at."""

import pytest
import torch

from sgl_spec.cpu import build
from sgl_spec.cpu.argmax import argmax
from sgl_spec.cpu.greedy import MOST_ROWS, GreedyHead
from sgl_spec.cpu.linear import PackedLinear

MODULE = build.load()
ISAS = [] if isinstance(MODULE, str) else MODULE.available_isas()
SHAPES = [(1, 1), (3, 5), (17, 33), (50, 257), (201, 576), (3000, 64), (1025, 1537)]

native = pytest.mark.skipif(not ISAS, reason=MODULE if isinstance(MODULE, str) else "")


def matrix(n, k, seed=0):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed))


def heads(weight, storage="fp32", isa=""):
    head = PackedLinear(weight, storage=storage, isa=isa)
    return head, GreedyHead(weight, head)


def agrees(head, greedy, x):
    assert greedy.native is not None
    best = greedy.best(x)
    assert best == argmax(head(x))
    return best


@native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", ["fp32", "bf16"])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_it_is_the_argmax_of_the_head(isa, storage, n, k):
    head, greedy = heads(matrix(n, k, 1), storage, isa)
    for rows in range(1, MOST_ROWS + 1):
        agrees(head, greedy, matrix(rows, k, rows))


@native
def test_weights_in_int8_alone_would_name_others():
    """So the exact second look decides."""
    weight = matrix(4000, 96, 3)
    head, greedy = heads(weight)
    rough = PackedLinear(weight, storage="int8")
    x = torch.cat([matrix(8, 96, seed) for seed in range(40)])
    wrong = sum(a != b for a, b in zip(argmax(rough(x)), argmax(head(x)), strict=True))
    assert wrong >= 3
    for part in x.split(8):
        agrees(head, greedy, part)


@native
@pytest.mark.parametrize("isa", ISAS)
def test_the_bound_is_reached(isa):
    """All roundings of one row push its output down, all of the other's up: int8 is wrong by as much as it can be."""
    k = 64
    sign = torch.ones(k)
    sign[::3] = -1.0
    low, high = 20.0 * sign, 20.0 * sign
    high[:63] += sign[:63]  # 63 more, less than the 0.998 * k of the roundings
    weight = torch.zeros(40, k + 1)
    weight[7, :k], weight[3, :k] = low + 0.499 * sign, high - 0.499 * sign
    weight[:, k] = 127.0  # so that a step of int8 is 1; nothing of it is in x
    x = torch.cat([sign, torch.zeros(1)])[None]
    assert argmax(PackedLinear(weight, storage="int8")(x)) == [3]
    head, greedy = heads(weight, isa=isa)
    assert agrees(head, greedy, x) == [7]


@native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("apart", [0.0, 1e-7, 1e-5, 1e-3])
def test_outputs_that_nearly_tie(isa, apart):
    """Rows that differ by a rounding or not at all: the largest, and the lowest among equals."""
    weight = 0.01 * matrix(500, 64, 1)
    weight[[40, 41, 260, 499]] = matrix(1, 64, 2)
    weight[260] *= 1.0 + apart
    head, greedy = heads(weight, isa=isa)
    x = matrix(1, 64, 2)
    assert agrees(head, greedy, x) == ([260] if apart else [40])


@native
def test_a_row_with_one_large_weight_has_a_coarse_scale():
    """Its output may be off by hundreds of times what the others' may."""
    weight = matrix(300, 128, 1)
    weight[7, 0] = 3000.0
    head, greedy = heads(weight)
    x = matrix(8, 128, 4)
    x[:, 0] = torch.linspace(-0.02, 0.02, 8)
    assert 7 in agrees(head, greedy, x)


@native
@pytest.mark.parametrize("rows", [65, 2000])
def test_more_equals_than_are_looked_at_one_by_one(rows):
    weight = matrix(1, 48, 1).repeat(rows, 1)
    weight[-1] *= 1.0 + 2e-7
    head, greedy = heads(weight)
    agrees(head, greedy, torch.cat([matrix(1, 48, 1), -matrix(1, 48, 1), torch.zeros(1, 48)]))


@native
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e20, 1e-35])
def test_numbers_beyond_the_bound(value):
    """In the weight or in x: the head itself decides."""
    weight, x = matrix(4000, 40, 1), matrix(5, 40, 2)
    odd = weight.clone()
    odd[100, 3] = value
    agrees(*heads(odd), x)
    weight[100] = 0.0
    weight[100, 3] = value
    agrees(*heads(weight), x)
    odd = x.clone()
    odd[2] = value
    agrees(*heads(matrix(4000, 40, 1)), odd)


@native
def test_a_product_in_int8_may_overflow_where_the_exact_one_does_not():
    assert agrees(*heads(torch.tensor([[0.02, 1e-4], [0.04, 10.0]])), torch.tensor([[3e37, 0.0]])) == [1]


@native
def test_zero_rows_and_a_zero_x():
    weight = matrix(130, 24, 1)
    weight[10:20] = 0.0
    x = matrix(3, 24, 2)
    x[1] = 0.0
    assert agrees(*heads(weight), x)[1] == 0


@native
def test_a_head_kept_in_bf16_is_what_decides():
    """Not the numbers that it was made from."""
    weight = matrix(64, 32, 1)
    weight[5] = weight[9].bfloat16().float()
    weight[9] = weight[5] * (1.0 + 2**-10)  # the same in bf16
    head, greedy = heads(weight, "bf16")
    assert agrees(head, greedy, weight[9:10])[0] == 5


@native
def test_threads_change_nothing():
    from sgl_spec.cpu.linear import set_threads

    head, greedy = heads(matrix(3000, 64, 1))
    x = matrix(4, 64, 2)
    alone = agrees(head, greedy, x)
    set_threads(2)
    try:
        assert greedy.best(x) == alone
    finally:
        set_threads(1)


def test_where_the_head_itself_runs(monkeypatch):
    """With a bias, in int8, for many rows, without kernels."""
    weight, x = matrix(60, 16, 1), matrix(MOST_ROWS + 1, 16, 2)
    bias = matrix(1, 60, 3)[0]
    for head in (PackedLinear(weight, bias), PackedLinear(weight, storage="int8")):
        greedy = GreedyHead(weight, head)
        assert (greedy.native, greedy.memory_bytes) == (None, 0)
        assert greedy.best(x) == argmax(head(x))
    head, greedy = heads(weight)
    assert greedy.best(x) == argmax(head(x))
    monkeypatch.setattr("sgl_spec.cpu.greedy.load", lambda: "switched off by a test")
    greedy = GreedyHead(weight, head)
    assert greedy.native is None
    assert greedy.best(x) == argmax(head(x))


@native
def test_it_keeps_a_quarter_of_the_bytes():
    head, greedy = heads(matrix(1600, 64, 1))
    assert greedy.memory_bytes == head.memory_bytes // 4 + 1600 * 4
