"""Peers without their engines: processes, sentences, figures, and F32 GGUF files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sgl_spec.bench.peers import side
from sgl_spec.bench.peers.command import _against, _job
from sgl_spec.bench.peers.environments import PEERS
from sgl_spec.bench.peers.gguf_f32 import add_f32_files
from sgl_spec.bench.peers.measure import headline, in_turn, rows_of
from sgl_spec.bench.peers.side import Call, PeerProcess
from sgl_spec.cli import main
from sgl_spec.errors import EngineError
from sgl_spec.gguf_folder import _half_split_rows

FAKE = """
from sgl_spec.bench.peers.wire import Loaded, serve

def decode(mode, texts, tokens):
    print("noise")
    if tokens > 100:
        raise RuntimeError("no such kernel\\nand more")
    return tokens * len(texts), [mode + text for text in texts]

serve(lambda job: Loaded("fake " + job["target"], decode, {"plain": [1, 2]}, {"n-gram": "not built"}))
"""


class Timed:
    """A side whose modes take so many seconds for a call."""

    def __init__(self, engine: str, seconds: dict[str, list[float]], sizes: list[int]) -> None:
        self.engine, self.seconds = engine, seconds
        self.modes = dict.fromkeys(seconds, sizes)
        self.asked: list[str] = []

    def ask(self, mode: str, texts: list[str], tokens: int) -> Call:
        self.asked.append(mode)
        return Call(tokens * len(texts), self.seconds[mode][len(texts) > 1], list(texts))


CALLS = [(["a"], 10), (["b"], 10), ([str(i) for i in range(16)], 5)]


def sides() -> list[Timed]:
    ours = Timed("sgl-spec", {"plain": [1.0, 2.0], "all sources": [0.5, 2.5]}, [1, 16])
    return [ours, Timed("llama.cpp F32", {"plain": [1.1, 9.0], "n-gram": [1.0, 3.0]}, [1, 16])]


def test_sides_are_asked_in_turn_and_the_order_turns() -> None:
    both = sides()
    series = in_turn(both, CALLS, lambda _line: None)
    assert both[0].asked == ["plain", "all sources", "all sources", "plain", "plain", "all sources"]
    assert [(one.mode, one.requests, len(one.calls)) for one in series[:2]] == [("plain", 1, 2), ("all sources", 1, 2)]
    assert len(series) == 8


def test_rows_compare_with_own_plain_and_with_ours_and_name_the_goal() -> None:
    rows = rows_of(in_turn(sides(), CALLS, lambda _line: None), "sgl-spec")
    plain = next(row for row in rows if row["engine"] == "llama.cpp F32" and row["mode"] == "plain")
    assert (plain["our_plain_to_this"], plain["our_sources_to_this"], plain["same_texts"]) == (1.1, 2.2, "2 of 2")
    assert (plain["goal"], plain["met"]) == ("our plain >= 1.2", False)
    guessed = next(row for row in rows if row["mode"] == "n-gram" and row["requests"] == 16)
    assert (guessed["to_its_own_plain"], guessed["our_sources_to_this"]) == (3.0, 1.2)
    assert "goal" not in guessed


def test_the_headline_is_against_the_fastest_other_mode_at_batch_one() -> None:
    series = in_turn(sides(), CALLS, lambda _line: None)
    assert headline(series, "sgl-spec").value == pytest.approx(2.0)
    with pytest.raises(EngineError, match="no peer ran besides"):
        headline([one for one in series if one.side.engine == "sgl-spec"], "sgl-spec")


def test_prompts_are_never_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sgl_spec.bench.peers.command.chat_prompts", lambda _model, task, n: [f"{task} {i}" for i in range(n)]
    )
    job, calls = _job(("t", "d"), prompts=3, tokens=64, size=16)
    texts = [text for prompts, _ in calls for text in prompts]
    assert len(texts) == len(set(texts)) == 6 + 16
    assert [tokens for _, tokens in calls] == [64] * 6 + [32]
    assert job["batch"] == calls[-1][0]


def test_an_unknown_peer_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "peers", "--only", "lama.cpp"]) == 2
    assert "there is no peer 'lama.cpp' (did you mean 'llama.cpp'?)" in capsys.readouterr().err


def test_a_missing_peer_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert PEERS["transformers"].missing() is None
    lines: list[str] = []
    console: Any = type("Console", (), {"print": lambda self, text: lines.append(text)})()
    assert _against("vllm", sides()[0], {"threads": 1}, CALLS, console) == []
    assert lines == ["  vllm is skipped: it is not installed (sgl-spec bench peers --only vllm --install)."]


def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> PeerProcess:
    import sys

    (tmp_path / "run.py").write_text(text)
    return PeerProcess("fake", Path(sys.executable), str(tmp_path / "run.py"), {"threads": 1, "target": "T"}, {})


def test_a_peer_answers_in_its_own_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with fake(monkeypatch, tmp_path, FAKE) as peer:
        assert (peer.engine, peer.modes, peer.failed) == ("fake T", {"plain": [1, 2]}, {"n-gram": "not built"})
        call = peer.ask("plain", ["x", "y"], 7)
        assert (call.tokens, call.texts) == (14, ["plainx", "plainy"])
        with pytest.raises(EngineError, match=r"fake failed: RuntimeError: no such kernel$"):
            peer.ask("plain", ["x"], 101)


def test_a_peer_that_does_not_load_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="fake failed: no such model"):
        fake(monkeypatch, tmp_path, "raise SystemExit('no such model')")
    monkeypatch.setattr(side, "START_S", 0.2)
    with pytest.raises(EngineError, match="fake did not answer within 0 s"):
        fake(monkeypatch, tmp_path, "import time; time.sleep(60)")


def test_a_gguf_file_holds_the_folder_s_weights(tmp_path: Path) -> None:
    from gguf import GGUFReader, GGUFWriter
    from safetensors.numpy import save_file

    config = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 4} | {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    shapes = {"self_attn.q_proj": (8, 8), "self_attn.k_proj": (4, 8), "self_attn.v_proj": (4, 8), "mlp.up_proj": (4, 8)}
    shapes |= {"self_attn.o_proj": (8, 8), "mlp.gate_proj": (4, 8), "mlp.down_proj": (8, 4)}
    draws = np.random.default_rng(0)
    weights = {f"model.layers.0.{name}.weight": draws.random(shape, np.float32) for name, shape in shapes.items()}
    for name in ("model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.norm"):
        weights[f"{name}.weight"] = draws.random(8, np.float32)
    weights["model.embed_tokens.weight"] = draws.random((6, 8), np.float32)
    save_file(weights, tmp_path / "model" / "model.safetensors")
    (tmp_path / "wheel").mkdir()
    like = GGUFWriter(str(tmp_path / "wheel" / "like.gguf"), "llama")
    like.add_block_count(30)
    like.add_head_count(9)
    like.add_token_list(["a", "b"])
    like.add_tensor("x", np.zeros(4, np.float32))
    like.write_header_to_file()
    like.write_kv_data_to_file()
    like.write_tensors_to_file()
    like.close()
    job = {"target": str(tmp_path / "model"), "draft": str(tmp_path / "model"), "threads": 1}
    files = add_f32_files(job, tmp_path)
    assert files["target_gguf"] == files["draft_gguf"]
    written = Path(files["target_gguf"]).stat().st_mtime_ns
    assert Path(add_f32_files(job, tmp_path)["target_gguf"]).stat().st_mtime_ns == written
    reader = GGUFReader(files["target_gguf"])
    assert reader.fields["llama.block_count"].contents() == 1
    assert reader.fields["llama.attention.head_count"].contents() == 2
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    found = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    query = weights["model.layers.0.self_attn.q_proj.weight"]
    assert (_half_split_rows(found["blk.0.attn_q.weight"], 2) == query).all()
    assert (found["token_embd.weight"] == weights["model.embed_tokens.weight"]).all()
    assert len(found) == len(weights)
