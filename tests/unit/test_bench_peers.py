"""Peers without their engines: jobs, sentences, figures, and F32 GGUF files."""

import json
from pathlib import Path

import numpy as np
import pytest

from sgl_spec.bench.peers import command
from sgl_spec.bench.peers.command import _headline, _rows
from sgl_spec.bench.peers.engines import PEERS, Peer
from sgl_spec.bench.peers.gguf_f32 import write_f32
from sgl_spec.cli import main
from sgl_spec.errors import EngineError
from sgl_spec.gguf_folder import _half_split_rows


def answer(engine: str, *series: tuple[str, int, list[list[float]]]) -> dict:
    return {"engine": engine, "series": [{"mode": m, "requests": n, "calls": calls} for m, n, calls in series]}


OURS = answer(
    "sgl-spec",
    ("plain", 1, [[10, 1.0], [10, 1.0]]),
    ("speculative", 1, [[10, 0.5], [10, 0.5]]),
    ("plain", 16, [[100, 1.0]]),
    ("speculative", 16, [[100, 0.8]]),
)
OTHER = answer("other", ("plain", 1, [[10, 2.0], [10, 2.0]]), ("n-gram", 1, [[10, 1.0], [10, 1.0]]))


def test_the_headline_is_against_the_fastest_other_engine():
    assert _headline([OURS, OTHER])[0] == pytest.approx(2.0)
    with pytest.raises(EngineError, match="no peer ran besides"):
        _headline([OURS])


def test_rows_compare_with_own_plain_and_with_ours():
    row = _rows(OTHER, OURS)[1]
    assert row["to_its_own_plain"] == 2.0
    assert row["ours_speculative_to_this"] == 2.0
    assert row["ours_plain_to_this"] == 1.0


def test_an_unknown_peer_is_one_sentence(capsys):
    assert main(["bench", "peers", "--only", "lama.cpp"]) == 2
    assert "there is no peer 'lama.cpp' (did you mean 'llama.cpp'?)" in capsys.readouterr().err


def test_a_missing_peer_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert PEERS["transformers"].missing() is None
    assert "bench peers --only vllm --install" in str(PEERS["vllm"].missing())


def peer(tmp_path: Path, text: str) -> Peer:
    script = tmp_path / "run.py"
    script.write_text(text)
    return Peer("fake", str(script))


def test_a_peer_answers_a_job_in_its_own_process(tmp_path):
    fake = peer(tmp_path, "import json, sys; print('noise'); print(json.dumps(json.load(sys.stdin)))")
    assert fake.run({"threads": 1, "x": [1]}) == {"threads": 1, "x": [1]}


def test_a_failing_peer_is_one_sentence(tmp_path):
    fake = peer(tmp_path, "raise SystemExit('no such kernel')")
    with pytest.raises(EngineError, match="fake failed: no such kernel"):
        fake.run({"threads": 1})
    lines: list[str] = []
    console = type("Console", (), {"print": lambda self, text: lines.append(text)})()
    assert command._run(fake, {"threads": 1}, tmp_path, console) is None
    assert lines == ["  fake is skipped: fake failed: no such kernel"]


def test_a_gguf_file_holds_the_folder_s_weights(tmp_path):
    from gguf import GGUFReader, GGUFWriter
    from safetensors.numpy import save_file

    config = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 4} | {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    shapes = {"self_attn.q_proj": (8, 8), "self_attn.k_proj": (4, 8), "self_attn.v_proj": (4, 8), "mlp.up_proj": (4, 8)}
    shapes |= {"self_attn.o_proj": (8, 8), "mlp.gate_proj": (4, 8), "mlp.down_proj": (8, 4)}
    draws = np.random.default_rng(0)
    weights = {f"model.layers.0.{name}.weight": draws.random(shape, np.float32) for name, shape in shapes.items()}
    for name in ("model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.norm"):
        weights[f"{name}.weight"] = draws.random(8, np.float32)
    weights["model.embed_tokens.weight"] = draws.random((6, 8), np.float32)
    save_file(weights, tmp_path / "model.safetensors")
    like = GGUFWriter(str(tmp_path / "like.gguf"), "llama")
    like.add_block_count(30)
    like.add_token_list(["a", "b"])
    like.add_tensor("x", np.zeros(4, np.float32))
    like.write_header_to_file()
    like.write_kv_data_to_file()
    like.write_tensors_to_file()
    like.close()
    reader = GGUFReader(str(write_f32(tmp_path, tmp_path / "like.gguf", tmp_path / "out.gguf")))
    assert reader.fields["llama.block_count"].contents() == 1
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    found = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    query = weights["model.layers.0.self_attn.q_proj.weight"]
    assert (_half_split_rows(found["blk.0.attn_q.weight"], 2) == query).all()
    assert (found["token_embd.weight"] == weights["model.embed_tokens.weight"]).all()
    assert len(found) == len(weights)
