"""PackedLinear against float64, and its promise: a row's result does not depend on the batch around it."""

import pytest
import torch

from sgl_spec.cpu import build
from sgl_spec.cpu.linear import STORAGES, PackedLinear, set_threads
from sgl_spec.errors import ConfigError

MODULE = build.load()
ISAS = [] if isinstance(MODULE, str) else MODULE.available_isas()
SHAPES = [(1, 1), (3, 5), (8, 8), (17, 33), (31, 100), (50, 257), (96, 64), (201, 576), (64, 1537)]
ROWS = [*range(1, 18), 64]

native = pytest.mark.skipif(not ISAS, reason=MODULE if isinstance(MODULE, str) else "")


@pytest.fixture
def fallback(monkeypatch):
    monkeypatch.setattr("sgl_spec.cpu.linear.load", lambda: "switched off by a test")


def matrix(n, k, seed=0):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed))


def stored(weight, storage):
    """The weight as float64 after `storage` rounded it."""
    if storage == "bf16":
        return weight.bfloat16().double()
    if storage == "int8":
        scale = weight.abs().amax(1, keepdim=True) / 127
        return torch.where(scale > 0, (weight / scale).round(), 0).double() * scale.double()
    return weight.double()


def tolerance(weight, x):
    """Error bound of a float32 dot product of length k: k eps sum |w||x|."""
    k = weight.shape[1]
    return (k + 4) * 2**-24 * (x.double().abs() @ weight.abs().T) + 1e-30


@native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_against_float64(isa, storage, n, k):
    weight, bias = matrix(n, k, 1), matrix(1, n, 2)[0]
    packed = PackedLinear(weight, bias, storage, isa)
    assert packed.native.isa == isa
    exact = stored(weight, storage)
    for rows in ROWS:
        x = matrix(rows, k, rows)
        error = (packed(x).double() - (x.double() @ exact.T + bias.double())).abs()
        assert (error <= 2 * tolerance(exact, x) + 1e-6 * bias.abs()).all()


@native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", STORAGES)
def test_row_does_not_depend_on_the_batch(isa, storage):
    packed = PackedLinear(matrix(77, 1100), matrix(1, 77)[0], storage, isa)
    x = matrix(300, 1100, 5)
    alone = torch.cat([packed(x[i : i + 1]) for i in range(len(x))])
    for rows in [*range(1, 26), 64, 128, 300]:
        for start in {0, 3, len(x) - rows} & set(range(len(x) - rows + 1)):
            assert torch.equal(packed(x[start : start + rows]), alone[start : start + rows])


@native
@pytest.mark.parametrize("storage", STORAGES)
def test_thread_count_changes_nothing(storage):
    packed = PackedLinear(matrix(515, 130), None, storage)
    x = matrix(40, 130, 3)
    expected = [packed(x[:rows]) for rows in (1, 7, 40)]
    try:
        for threads in (2, 3, 5):
            set_threads(threads)
            for _ in range(20):
                for rows, want in zip((1, 7, 40), expected, strict=True):
                    assert torch.equal(packed(x[:rows]), want)
    finally:
        set_threads(1)


@native
@pytest.mark.parametrize("isa", [i for i in ISAS if i != "portable"])
def test_fma_instruction_sets_agree_bit_for_bit(isa):
    weight, x = matrix(100, 300), matrix(9, 300)
    assert torch.equal(PackedLinear(weight, isa=isa)(x), PackedLinear(weight)(x))


@pytest.mark.parametrize("path", ["native", "torch"])
@pytest.mark.parametrize("storage", STORAGES)
def test_nan_and_infinity_are_carried(path, storage, request):
    if path == "torch":
        request.getfixturevalue("fallback")
    weight = matrix(20, 24).abs() + 0.1
    x = matrix(5, 24).abs() + 0.1
    x[1, 3], x[2, 7], x[3, 0] = float("nan"), float("inf"), -float("inf")
    y = PackedLinear(weight, storage=storage)(x)
    assert y[0].isfinite().all()
    assert y[4].isfinite().all()
    assert y[1].isnan().all()
    assert (y[2] == float("inf")).all()
    assert (y[3] == -float("inf")).all()
    weight[6, 2] = float("nan")
    y = PackedLinear(weight, storage=storage)(x[:1])
    assert y[0].isnan().nonzero().flatten().tolist() == [6]


@pytest.mark.parametrize("path", ["native", "torch"])
@pytest.mark.parametrize("storage", STORAGES)
def test_inputs_may_be_views_and_the_weight_may_go(path, storage, request):
    if path == "torch":
        request.getfixturevalue("fallback")
    big = matrix(40, 70)
    exact = stored(big[3:33, 1:66].contiguous(), storage)
    packed = PackedLinear(big[3:33, 1:66], storage=storage)
    big.zero_()
    x = matrix(2, 200)[:, 5:135].view(2, 130)[:, ::2].unsqueeze(0)
    y = packed(x)
    assert y.shape == (1, 2, 30)
    torch.testing.assert_close(y[0], (x[0].double() @ exact.T).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("path", ["native", "torch"])
@pytest.mark.parametrize("storage", STORAGES)
def test_a_bf16_weight_is_taken_as_it_is(path, storage, request):
    if path == "torch":
        request.getfixturevalue("fallback")
    weight, x = matrix(19, 40).bfloat16(), matrix(3, 40)
    torch.testing.assert_close(
        PackedLinear(weight, storage=storage)(x), PackedLinear(weight.float(), storage=storage)(x)
    )


@pytest.mark.parametrize("path", ["native", "torch"])
def test_no_rows_and_memory(path, request):
    if path == "torch":
        request.getfixturevalue("fallback")
    sizes = {s: PackedLinear(matrix(64, 48), storage=s).memory_bytes for s in STORAGES}
    assert sizes == {"fp32": 64 * 48 * 4, "bf16": 64 * 48 * 2, "int8": 64 * 48 + 64 * 4}
    assert PackedLinear(matrix(64, 48))(torch.empty(0, 48)).shape == (0, 64)


def test_bad_input_is_one_sentence():
    for call, word in [
        (lambda: PackedLinear(matrix(2, 2), storage="fp8"), "storage='fp8'"),
        (lambda: PackedLinear(matrix(2, 2).double()), "float64"),
        (lambda: PackedLinear(matrix(2, 2), torch.zeros(3)), r"\(3,\)"),
        (lambda: PackedLinear(matrix(2, 2))(matrix(1, 3)), r"rows of 2"),
        (lambda: set_threads(0), "threads=0"),
    ]:
        with pytest.raises(ConfigError, match=word):
            call()


def test_numbers_that_are_bf16_give_the_same_results_bit_for_bit_from_half_the_bytes():
    generator = torch.Generator().manual_seed(8)
    weight = torch.randn(37, 50, generator=generator).bfloat16().float()
    x = torch.randn(7, 50, generator=generator)
    whole, half = PackedLinear(weight), PackedLinear(weight, storage="bf16")
    assert torch.equal(whole(x), half(x))
    assert half.memory_bytes < whole.memory_bytes
