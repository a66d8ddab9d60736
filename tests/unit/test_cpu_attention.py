"""Paged attention against float64, and its independence of what else is in the call."""

import pytest
import torch

from sgl_spec.cpu.attention import attend
from sgl_spec.cpu.build import load
from sgl_spec.cpu.linear import set_threads
from sgl_spec.errors import ConfigError

MODULE = load()
ISAS = [] if isinstance(MODULE, str) else MODULE.available_isas()
SLOTS, COLUMNS = 700, 330
native = pytest.mark.skipif(not ISAS, reason=MODULE if isinstance(MODULE, str) else "")


@pytest.fixture(params=[*ISAS, "torch"])
def path(request, monkeypatch):
    """Runs a test once per instruction set and once on the PyTorch path."""
    if request.param == "torch":
        monkeypatch.setattr("sgl_spec.cpu.attention.load", lambda: "switched off by a test")
        yield "torch"
        return
    MODULE.use_isa(request.param)
    yield request.param
    MODULE.use_isa("")


def case(heads=6, kv_heads=2, dim=32, v_dim=32, seed=0):
    """Two requests with shuffled slots: q for 40 tokens, pool, table, rows, lengths (short, odd and long)."""
    g = torch.Generator().manual_seed(seed)
    table = torch.randperm(SLOTS, generator=g)[: 2 * COLUMNS].view(2, COLUMNS).to(torch.int32)
    rows = torch.tensor([0] * 25 + [1] * 15)
    lengths = torch.cat(
        [torch.arange(250, 275), torch.tensor([1, 2, 3, 63, 64, 65, 127, 128, 129]), torch.arange(300, 306)]
    )
    return (
        torch.randn(40, heads * dim, generator=g),
        torch.randn(SLOTS, kv_heads, dim, generator=g),
        torch.randn(SLOTS, kv_heads, v_dim, generator=g),
        table,
        rows,
        lengths,
    )


def exact(q, keys, values, table, rows, lengths, scale, cap=0.0, window=-1):
    """The definition, in float64."""
    group = q.shape[1] // keys.shape[2] // keys.shape[1]
    out = []
    for token, row, length in zip(q.double(), rows, lengths, strict=True):
        slots = table[row, :length].long()[-window if window > 0 else 0 :]
        k = keys[slots].double().repeat_interleave(group, 1)
        v = values[slots].double().repeat_interleave(group, 1)
        scores = torch.einsum("hd,shd->hs", token.view(-1, k.shape[2]), k) * scale
        scores = cap * torch.tanh(scores / cap) if cap else scores
        out.append(torch.einsum("hs,shd->hd", scores.softmax(1), v).flatten())
    return torch.stack(out)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "v_dim"), [(6, 2, 32, 32), (4, 4, 64, 16), (8, 1, 48, 96), (3, 1, 8, 8)]
)
@pytest.mark.parametrize(("cap", "window"), [(0.0, -1), (5.0, -1), (0.0, 1), (0.0, 70), (2.0, 128)])
def test_against_float64(path, heads, kv_heads, dim, v_dim, cap, window):
    inputs = case(heads, kv_heads, dim, v_dim)
    got = attend(*inputs, dim**-0.5, cap, window)
    torch.testing.assert_close(got.double(), exact(*inputs, dim**-0.5, cap, window), atol=3e-6, rtol=1e-5)


@native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("window", [-1, 40])
def test_a_token_does_not_depend_on_its_company(isa, window):
    MODULE.use_isa(isa)
    try:
        q, keys, values, table, rows, lengths = case()
        whole = attend(q, keys, values, table, rows, lengths, 0.2, 0.0, window)
        for order in (torch.arange(40).split(1), torch.arange(40).split(7), [torch.randperm(40)]):
            for part in order:
                got = attend(q[part], keys, values, table, rows[part], lengths[part], 0.2, 0.0, window)
                assert torch.equal(got, whole[part])
    finally:
        MODULE.use_isa("")


@native
def test_the_thread_count_changes_nothing():
    inputs = case()
    one = attend(*inputs, 0.2)
    try:
        set_threads(3)
        assert all(torch.equal(attend(*inputs, 0.2), one) for _ in range(10))
    finally:
        set_threads(1)


def test_slots_that_a_token_does_not_see_do_not_matter(path):
    q, keys, values, table, rows, lengths = case()
    before = attend(q, keys, values, table, rows, lengths, 0.2)
    unseen = torch.ones(SLOTS, dtype=torch.bool)
    for row in (0, 1):
        unseen[table[row, : lengths[rows == row].max()].long()] = False
    keys[unseen] = values[unseen] = float("nan")
    assert torch.equal(attend(q, keys, values, table, rows, lengths, 0.2), before)


def test_nan_is_carried(path):
    q, keys, values, table, rows, lengths = case()
    keys[table[1, 2].long()] = float("nan")
    out = attend(q, keys, values, table, rows, lengths, 0.2)
    assert out[rows == 0].isfinite().all()
    assert out[(rows == 1) & (lengths < 3)].isfinite().all()
    assert out[(rows == 1) & (lengths >= 3)].isnan().all()


def test_no_tokens(path):
    q, keys, values, table, rows, lengths = case()
    assert attend(q[:0], keys, values, table, rows[:0], lengths[:0], 0.2).shape == (0, 192)


def test_bad_input_is_one_sentence():
    q, keys, values, table, rows, lengths = case()
    for change, word in [({"q": q[:, 1:]}, "191 columns"), ({"sliding_window": 0}, "sliding_window=0")]:
        inputs = {
            "q": q,
            "k_buffer": keys,
            "v_buffer": values,
            "req_to_token": table,
            "row_of_token": rows,
            "kv_len": lengths,
            "scale": 1.0,
        }
        with pytest.raises(ConfigError, match=word):
            attend(**(inputs | change))


@pytest.mark.skipif(isinstance(load(), str), reason="no C++ kernels here")
def test_what_the_kernel_cannot_read_is_one_sentence():
    q, keys, values, table, rows, lengths = case()
    for change, word in [
        ({"v_buffer": values.bfloat16()}, "float32 tensors there, not torch.bfloat16"),
        ({"req_to_token": table.long()}, "an int32 req_to_token"),
        ({"k_buffer": keys.transpose(0, 1).contiguous().transpose(0, 1)}, "contiguous KV buffers"),
    ]:
        given = {"q": q, "k_buffer": keys, "v_buffer": values, "req_to_token": table} | change
        with pytest.raises(ConfigError, match=word):
            attend(**given, row_of_token=rows, kv_len=lengths, scale=1.0)
