"""Drafts made from a target, the forwards of bench verify-cost, and Transformers as a peer, on a toy model."""

import json
from functools import partial

import pytest
import torch

from sgl_spec.bench import verify_cost
from sgl_spec.bench.drafts import kept_folder, noisy_draft, random_draft
from sgl_spec.cpu import microbench
from sgl_spec.cpu.build import load
from sgl_spec.models import cache_root
from tests.unit.train_toys import VOCABULARY

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = partial(microbench.Shape, hidden=128, inter=96, heads=2, kv_heads=1, vocab=200)


def weights(folder):
    from safetensors.torch import load_file

    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def test_a_random_draft_shares_the_tokens_and_nothing_else(target, tmp_path):
    made = random_draft(target, tmp_path / "draft")
    config = json.loads((made / "config.json").read_text())
    assert (config["num_hidden_layers"], config["vocab_size"], config["hidden_size"]) == (1, VOCABULARY, 128)
    assert (made / "tokenizer.json").read_bytes() == (target / "tokenizer.json").read_bytes()
    mine, theirs = weights(made), weights(target)
    assert not torch.allclose(mine["model.embed_tokens.weight"], theirs["model.embed_tokens.weight"], atol=0.05)
    assert {value.dtype for value in mine.values()} == {torch.float32}
    before = (made / "model.safetensors").stat().st_mtime_ns
    assert random_draft(target, tmp_path / "draft") == made
    assert (made / "model.safetensors").stat().st_mtime_ns == before  # built once


def test_a_draft_of_another_target_is_kept_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folders = []
    for vocabulary in (100, 100, 200):
        folder = tmp_path / f"{len(folders)}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"vocab_size": vocabulary}))
        folders.append(kept_folder(folder, "random-draft"))
    assert folders[0] == folders[1] != folders[2]
    assert {folder.parent for folder in folders} == {cache_root() / "models"}


def test_a_noisy_draft_is_the_target_with_noise_on_its_matrices(target, tmp_path):
    made, theirs = weights(noisy_draft(target, tmp_path / "draft", 0.1)), weights(target)
    assert made.keys() == theirs.keys()
    for name, value in theirs.items():
        if value.ndim == 1 or "embed" in name:
            assert torch.equal(made[name], value), name
        else:
            noise = (made[name] - value).std() / value.std()
            assert float(noise) == pytest.approx(0.1, rel=0.05), name
    assert (tmp_path / "draft" / "tokenizer.json").is_file()
    assert not (tmp_path / "draft" / "model.safetensors.index.json").exists()


@pytest.mark.skipif(isinstance(load(), str), reason="no C++ kernels here")
def test_verify_cost_measures_each_number_of_rows_on_both_paths(monkeypatch, capsys):
    monkeypatch.setattr(microbench, "Shape", TINY)
    verify_cost.verify_cost(quick=True, json_output=True)
    result = json.loads(capsys.readouterr().out)
    assert [row["K"] for row in result["rows"]] == list(range(9))
    assert all(row["ours_ms"] > 0.0 and row["torch_ms"] > 0.0 for row in result["rows"])
    assert result["rows"][0]["ours_to_V0"] == result["rows"][0]["torch_to_V0"] == 1.0
    assert result["provenance"]["threads"] == 1


def test_every_forward_of_pytorchs_path_starts_after_the_same_prefix(monkeypatch):
    """What a call adds to the KV cache is taken out again."""
    import transformers

    seen = []
    real = transformers.DynamicCache

    class Noted(real):
        def crop(self, length):
            seen.append((self.get_seq_length(), length))
            super().crop(length)

    monkeypatch.setattr(transformers, "DynamicCache", Noted)
    forward = verify_cost.torch_forward(TINY(layers=1), 7)
    assert forward(3, 2) > 0.0
    assert forward(5, 1) > 0.0
    assert seen == [(10, 7)] * 3 + [(12, 7)] * 2


@pytest.mark.skipif(isinstance(load(), str), reason="no C++ kernels here")
def test_the_microbenchmark_prints_each_kind_and_its_json(monkeypatch, capsys):
    monkeypatch.setattr(microbench, "Shape", partial(TINY, layers=1))
    for arguments, kinds in (([], ["torch", "fp32"]), (["--forward", "--prefix", "5"], ["fp32"])):
        monkeypatch.setattr(
            "sys.argv", ["microbench", "--repeats", "1", "--rows", "1", "3", "--kinds", "torch", "fp32", *arguments]
        )
        microbench.main()
        lines = capsys.readouterr().out.splitlines()
        document = json.loads(lines[-1])
        assert list(document["ms"]) == kinds
        assert all(list(times) == ["1", "3"] and min(times.values()) > 0.0 for times in document["ms"].values())
        assert document["prefix"] == (5 if arguments else None)
        assert [line.split()[0] for line in lines[1:-1]] == kinds


def test_transformers_decodes_the_same_in_each_of_its_ways(target):
    from sgl_spec.bench.peers import run_transformers as peer

    texts = ["w5 w6 w7", "w9"]
    loaded = peer.load({"target": str(target), "draft": str(target), "threads": 1, "batch": texts})
    assert loaded.modes == {
        "plain": [1, 2],
        "assisted": [1],
        "assisted, one after the other": [2],
        "prompt lookup, 10 tokens": [1],
    }
    alone = loaded.decode("plain", texts[:1], 9)
    assert alone[0] == 9
    assert loaded.decode("assisted", texts[:1], 9) == alone
    assert loaded.decode("prompt lookup, 10 tokens", texts[:1], 9) == alone
    tokens, answers = loaded.decode("assisted, one after the other", texts, 9)
    assert tokens == 18
    assert answers[0] == alone[1][0]
    assert loaded.decode("plain", texts, 9) == (18, answers)  # padded on the left
