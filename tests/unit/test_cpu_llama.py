"""The fused Llama forward against Transformers, and its independence of what else is in the batch."""

import pytest
import torch

from sgl_spec.cpu import llama
from sgl_spec.cpu.build import load
from sgl_spec.cpu.greedy import MOST_ROWS, GreedyHead
from sgl_spec.cpu.linear import PackedLinear, set_threads
from sgl_spec.cpu.llama import LayerWeights, LlamaForward
from sgl_spec.errors import ConfigError

pytestmark = pytest.mark.skipif(isinstance(load(), str), reason="no C++ kernels here")
SLOTS, LENGTH = 96, 40


def toy(heads: int, kv_heads: int, qwen: bool = False):
    """A random model of Transformers and the same as a LlamaForward over an empty pool."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    shape = {
        "vocab_size": 300,
        "hidden_size": 16 * heads,
        "intermediate_size": 100,
        "num_hidden_layers": 3,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 16,
        "max_position_embeddings": 128,
    }
    model = Qwen3ForCausalLM(Qwen3Config(**shape)) if qwen else LlamaForCausalLM(LlamaConfig(**shape))
    model = model.float().eval()
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.uniform_(0.5, 1.5)
    layers = []
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        layers.append(
            LayerWeights(
                qkv=PackedLinear(
                    torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
                ),
                o=PackedLinear(attention.o_proj.weight),
                gate_up=PackedLinear(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])),
                down=PackedLinear(mlp.down_proj.weight),
                input_norm=layer.input_layernorm.weight.data,
                post_norm=layer.post_attention_layernorm.weight.data,
                keys=torch.zeros(SLOTS, kv_heads, 16),
                values=torch.zeros(SLOTS, kv_heads, 16),
                q_norm=attention.q_norm.weight.data if qwen else None,
                k_norm=attention.k_norm.weight.data if qwen else None,
            )
        )
    angles = torch.arange(128.0)[:, None] / 10_000 ** (torch.arange(0, 16, 2) / 16)[None, :]
    fused = LlamaForward(
        layers,
        model.model.embed_tokens.weight.data,
        model.model.norm.weight.data,
        torch.cat([angles.cos(), angles.sin()], dim=1).contiguous(),
        heads,
        kv_heads,
        eps=1e-6,
        scale=16**-0.5,
    )
    return model, fused


def pool(requests: int) -> torch.Tensor:
    """Slots of each request, shuffled over the pool: int32 [requests, LENGTH]."""
    order = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(1))[: requests * LENGTH]
    return order.reshape(requests, LENGTH).to(torch.int32)


def run(fused: LlamaForward, table: torch.Tensor, row: int, ids: torch.Tensor, start: int) -> torch.Tensor:
    positions = torch.arange(start, start + len(ids))
    return fused(ids, positions, table[row, positions].long(), torch.full_like(ids, row), table)


@pytest.mark.parametrize("isa", [] if isinstance(load(), str) else load().available_isas())
@pytest.mark.parametrize(("heads", "kv_heads", "qwen"), [(4, 4, False), (6, 2, False), (9, 3, True), (5, 1, False)])
def test_hidden_states_are_those_of_transformers(heads, kv_heads, qwen, isa):
    load().use_isa(isa)
    try:
        model, fused = toy(heads, kv_heads, qwen)
    finally:
        load().use_isa("")
    ids = torch.randint(0, 300, (LENGTH,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = model.model(ids[None]).last_hidden_state[0]
    torch.testing.assert_close(run(fused, pool(1), 0, ids, 0), expected, atol=2e-5, rtol=2e-5)


def test_a_token_does_not_depend_on_its_company():
    _, fused = toy(9, 3)
    generator = torch.Generator().manual_seed(3)
    first, second = (torch.randint(0, 300, (LENGTH,), generator=generator) for _ in range(2))
    table = pool(2)
    whole = run(fused, table, 0, first, 0)
    single = torch.cat([run(fused, table, 0, first[i : i + 1], i) for i in range(LENGTH)])
    assert torch.equal(whole, single)
    run(fused, table, 1, second[:10], 0)
    mixed = fused(
        torch.cat([second[10:13], first[20:25]]),
        torch.cat([torch.arange(10, 13), torch.arange(20, 25)]),
        torch.cat([table[1, 10:13], table[0, 20:25]]).long(),
        torch.tensor([1, 1, 1, 0, 0, 0, 0, 0]),
        table,
    )
    assert torch.equal(mixed[3:], whole[20:25])


def test_spans_are_tokens_at_their_positions_and_slots():
    _, fused = toy(6, 2)
    generator = torch.Generator().manual_seed(7)
    first, second = (torch.randint(0, 300, (LENGTH,), generator=generator) for _ in range(2))
    table = pool(2)
    expected = [run(fused, table, row, ids, 0) for row, ids in ((0, first), (1, second))]
    for layer in fused._kept[0]:
        layer.keys.zero_(), layer.values.zero_()
    fused.states([(1, 0, second[:9].tolist()), (0, 0, first[:4].tolist())], table)
    found = fused.states([(0, 4, first[4:7].tolist()), (1, 9, second[9:10].tolist())], table)
    assert torch.equal(found, torch.cat([expected[0][4:7], expected[1][9:10]]))


@pytest.mark.parametrize("rows", [1, MOST_ROWS, MOST_ROWS + 3])
@pytest.mark.parametrize("bias", [False, True])
def test_the_best_tokens_are_those_of_the_head(rows, bias):
    """With a bias there is no head in int8: the head itself decides."""
    _, fused = toy(6, 2)
    generator = torch.Generator().manual_seed(8)
    weight = torch.randn(700, fused.hidden, generator=generator)
    head = PackedLinear(weight, torch.randn(700, generator=generator) if bias else None)
    greedy = GreedyHead(weight, head)
    assert (greedy.native is None) == bias
    spans = [(0, 0, torch.randint(0, 300, (rows,), generator=generator).tolist())]
    table = pool(1)
    assert fused.best(spans, table, greedy) == head(fused.states(spans, table)).argmax(dim=-1).tolist()


def test_the_thread_count_changes_nothing():
    _, fused = toy(9, 3)
    ids = torch.randint(0, 300, (LENGTH,), generator=torch.Generator().manual_seed(4))
    one = run(fused, pool(1), 0, ids, 0)
    try:
        set_threads(3)
        assert all(torch.equal(run(fused, pool(1), 0, ids, 0), one) for _ in range(5))
    finally:
        set_threads(1)


def step_by_step(fused, head, names, *, table, row, ids, read, count):
    """The greedy chain by one call per token: tokens and probabilities."""
    run(fused, table, row, ids[:read], 0)
    hidden = run(fused, table, row, ids[read:], read)[-1:]
    tokens, probabilities = [], []
    for at in range(len(ids), len(ids) + count):
        law = head(hidden)[0].double().softmax(0)
        tokens.append(int(names[law.argmax()]))
        probabilities.append(float(law.max()))
        hidden = run(fused, table, row, torch.tensor(tokens[-1:]), at)
    return tokens, probabilities


@pytest.mark.parametrize("hot", [False, True])
def test_greedy_chains_are_those_of_single_steps(hot):
    model, fused = toy(6, 2)
    names = torch.arange(300) if not hot else torch.randperm(300, generator=torch.Generator().manual_seed(5))[:77]
    head = PackedLinear(model.lm_head.weight.data[names] * 60)
    table = pool(2)
    generator = torch.Generator().manual_seed(6)
    ids = [torch.randint(0, 300, (n,), generator=generator) for n in (9, 14)]
    read, counts = (7, 13), (6, 3)
    expected = [
        step_by_step(fused, head, names, table=table, row=r, ids=ids[r], read=read[r], count=counts[r]) for r in (0, 1)
    ]
    inputs = ([(r, read[r], ids[r][read[r] :].tolist()) for r in (0, 1)], table)
    everything = [(counts[0], 0.0, 0.0), (counts[1], 0.0, 0.0)]
    tokens, probabilities, first_s = fused.greedy_chains(*inputs, head, everything, names if hot else None)
    assert first_s > 0.0
    for r in (0, 1):
        assert tokens[r] == expected[r][0]
        assert probabilities[r] == pytest.approx(expected[r][1], rel=1e-4)
    stop = expected[0][1][0] * expected[0][1][1] * 0.999  # two tokens survive this threshold, the third may not
    survivors, product = 0, 1.0
    for p in expected[0][1]:
        product *= p
        survivors += product >= stop
    cut = fused.greedy_chains(*inputs, head, [(counts[0], stop, stop), (0, 0.0, 0.0)], names if hot else None)
    assert cut[0] == [expected[0][0][:survivors], []]
    unsure = fused.greedy_chains(*inputs, head, [(counts[0], 0.0, stop), (0, 0.0, 0.0)], names if hot else None)
    assert unsure[0] == [expected[0][0][: survivors + 1], []]  # the first one below is kept, none follows it


def built(**changes):
    """A forward of one layer with head dimension 16, with something about it changed."""
    heads, kv_heads, dim = changes.get("heads", 4), changes.get("kv_heads", 2), changes.get("dim", 16)
    hidden = 64
    layer = LayerWeights(
        qkv=PackedLinear(torch.zeros((heads + 2 * kv_heads) * dim, hidden)),
        o=PackedLinear(torch.zeros(hidden, heads * dim)),
        gate_up=PackedLinear(torch.zeros(32, hidden)),
        down=PackedLinear(torch.zeros(hidden, 16)),
        input_norm=torch.ones(hidden),
        post_norm=torch.ones(hidden),
        keys=torch.zeros(8, kv_heads, dim),
        values=changes.get("values", torch.zeros(8, kv_heads, dim)),
    )
    cos_sin = torch.zeros(8, changes.get("rotary", dim))
    return LlamaForward([layer], torch.zeros(9, hidden), torch.ones(hidden), cos_sin, heads, kv_heads, 1e-6, 1.0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"values": torch.zeros(8, 2, 16, dtype=torch.bfloat16)}, "not torch.bfloat16"),
        ({"values": torch.zeros(8, 16, 2).transpose(1, 2)}, "takes contiguous float32 CPU tensors"),
        ({"dim": 24}, "head_dim=24 with 24 rotary columns"),
        ({"rotary": 8}, "head_dim=16 with 8 rotary columns"),
        ({"heads": 65, "kv_heads": 1}, "65 query heads per key head are more than 64"),
    ],
)
def test_shapes_without_a_fused_forward_are_one_sentence(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        built(**changes)


def test_a_head_of_another_width_and_no_kernels_are_one_sentence(monkeypatch):
    spans, narrow = [(0, 0, [0])], PackedLinear(torch.zeros(9, 32))
    table = torch.zeros(1, 8, dtype=torch.int32)
    with pytest.raises(ConfigError, match="the head takes 32 inputs, the model has hidden size 64"):
        built().greedy_chains(spans, table, narrow, [(1, 0.0, 0.0)])
    with pytest.raises(ConfigError, match="the head takes 32 inputs, the model has hidden size 64"):
        built().best(spans, table, GreedyHead(torch.zeros(9, 32), narrow))
    monkeypatch.setattr(llama, "load", lambda: "no compiler here")
    with pytest.raises(ConfigError, match=r"needs the C\+\+ kernels: no compiler here"):
        built()
