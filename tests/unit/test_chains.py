"""Greedy chains in one call of the kernels are those of one pass per token, and report the same passes."""

from types import SimpleNamespace

import pytest
import torch

from sgl_spec.cpu.build import load
from sgl_spec.cpu.linear import PackedLinear
from tests.unit.test_cpu_llama import pool, toy

pytestmark = pytest.mark.skipif(isinstance(load(), str), reason="no C++ kernels here")


@pytest.fixture(scope="module")
def passes():
    """The same model as a fused pass, and as one that draft_chains must drive token by token."""
    from sgl_spec.sglang_plugin.cpu_llama import FusedPass
    from sgl_spec.sglang_plugin.passes import StockPass

    class Slow(StockPass):
        def logits(self, spans, every_row):
            return fused.logits(spans, every_row)

    model, forward = toy(6, 2)
    runner = SimpleNamespace(device="cpu", req_to_token_pool=SimpleNamespace(req_to_token=pool(2)))
    fused = FusedPass(runner, forward, PackedLinear(model.lm_head.weight.data * 60))
    return fused, Slow(runner)


@pytest.mark.parametrize(
    "stops", [(0.0, 0.0), (0.02, 0.02), (0.3, 0.3), (1.0, 1.0), (0.0, 0.3), (0.02, 0.6), (0.0, 1.0)]
)
@pytest.mark.parametrize("counts", [(1, 1), (5, 2), (3, 7)])
def test_one_call_drafts_what_single_passes_draft(passes, counts, stops):
    from sgl_spec.sglang_plugin.chains import ChainOrder, draft_chains

    orders = [
        ChainOrder(str(row), row, 0, text, count, stop_below=stops[0], sampling=None, go_on=stops[1])
        for row, (text, count) in enumerate(zip(([5, 9, 200, 31], [7, 7, 1]), counts, strict=True))
    ]
    one, many = (draft_chains(each, orders, None, torch.Generator()) for each in passes)
    assert one.tokens == many.tokens
    assert one.laws == many.laws
    for name in ("catchup_tokens", "draft_steps", "draft_rows"):
        assert getattr(one, name) == getattr(many, name), name
    assert one.catchup_ms > 0.0
    if stops == (0.0, 1.0):  # never sure enough to go on
        assert [len(said) for said in one.tokens] == [1, 1]
        assert one.draft_steps == one.draft_rows == 0


@pytest.mark.parametrize("rows", [1, 5, 9])
def test_the_best_tokens_are_those_of_the_logits(passes, rows):
    """With all of the head, and with as little of it as will do."""
    from sgl_spec.sglang_plugin.cpu_llama import make_pass, make_verify_pass
    from sgl_spec.sglang_plugin.passes import Span

    fused, slow = passes
    weight = torch.randn(700, fused.head.in_features, generator=torch.Generator().manual_seed(1))
    model = SimpleNamespace(lm_head=SimpleNamespace(weight=weight))
    runner = SimpleNamespace(**vars(fused.runner), model=model, attn_backend=SimpleNamespace(fused=fused.fused))
    assert make_pass(runner).greedy is None  # a draft's tokens come from its chains
    quick = make_verify_pass(runner)
    assert quick.greedy.native is not None
    spans = [Span(0, 3, list(range(rows))), Span(1, 0, [3])]
    assert quick.best(spans) == quick.logits(spans, every_row=True).argmax(dim=-1).tolist()
    best = fused.logits(spans, every_row=True).argmax(dim=-1).tolist()
    assert fused.best(spans) == slow.best(spans) == best
