"""Drafts that are made for tests: those of the worst-case benchmark, and one with another vocabulary."""

import json
import shutil
from pathlib import Path

import torch

from sgl_spec.bench.drafts import noisy_draft, random_draft
from sgl_spec.draft.model import DraftCard, assemble, read_hot_ids, write_shipped
from sgl_spec.models import build_once
from sgl_spec.train.slim import Slim
from sgl_spec.train.student import student_of

__all__ = ["foreign_draft", "nan_draft", "noisy_draft", "random_draft", "slim_draft"]


def foreign_draft(target: Path, folder: Path, merges: int, layers: int | None = None) -> Path:
    """The target with another tokenizer: the first `merges` of its merges, ids in another order.

    Where the target says one token this model may need several; its layers (all, or the first few) are the target's.
    """

    def build(scratch: Path) -> None:
        from transformers import AutoModelForCausalLM

        tokenizer = json.loads((target / "tokenizer.json").read_text(encoding="utf-8"))
        model, added = tokenizer["model"], tokenizer["added_tokens"]
        model["merges"] = model["merges"][:merges]
        pairs = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
        special = {token["content"] for token in added}
        alphabet = {token for token in model["vocab"] if len(token) == 1}
        kept = sorted(special | alphabet | {a + b for a, b in pairs}, key=lambda token: model["vocab"][token])
        order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(0)).tolist()
        rows = [model["vocab"][kept[i]] for i in order]
        ids = {kept[i]: at for at, i in enumerate(order)}
        model["vocab"] = ids
        for token in added:
            token["id"] = ids[token["content"]]
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            if (target / name).is_file():
                shutil.copy(target / name, scratch / name)
        (scratch / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
        config_file = scratch / "tokenizer_config.json"
        config = json.loads(config_file.read_text(encoding="utf-8"))
        config.pop("added_tokens_decoder", None)
        config_file.write_text(json.dumps(config), encoding="utf-8")
        copy = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        copy.model.layers = copy.model.layers[:layers]
        copy.resize_token_embeddings(len(rows))
        whole = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).get_input_embeddings().weight
        copy.get_input_embeddings().weight.data = whole.data[rows].clone()
        copy.config.update({"num_hidden_layers": len(copy.model.layers), "vocab_size": len(rows)})
        for role in ("bos_token_id", "eos_token_id", "pad_token_id"):
            old = getattr(copy.config, role, None)
            setattr(copy.config, role, rows.index(old) if old in rows else None)
        copy.save_pretrained(scratch)

    return build_once(folder, build)


def slim_draft(draft: Path, target: Path, folder: Path) -> Path:
    """A distilled draft with a third of its heads and some MLP neurons gone, embeddings and an int8 head of its own."""

    def build(scratch: Path) -> None:
        ids = read_hot_ids(draft)
        assert ids is not None
        layers = tuple(range(json.loads((draft / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"]))
        student = student_of(draft, layers, ids, 1.0, slim=Slim(heads=6, mlp_width=1408), tune_embeddings=True)
        student.embedding.data *= 1.01
        card = DraftCard(target=target.name, head_storage="int8", own_embeddings=True)
        small = scratch / "shipped"
        write_shipped(small, student.config, student.trained_state(), ids, card)
        assemble(small, target, scratch)
        shutil.rmtree(small)

    return build_once(folder, build)


def nan_draft(target: Path, folder: Path) -> Path:
    """A random draft, one of whose matrices is NaN."""

    def build(scratch: Path) -> None:
        from safetensors.torch import load_file, save_file

        whole = random_draft(target, folder.with_name(f"{folder.name}-source"))
        for file in whole.iterdir():
            if file.name != "model.safetensors":
                shutil.copy(file, scratch / file.name)
        tensors = load_file(whole / "model.safetensors")
        tensors["model.layers.0.mlp.down_proj.weight"].fill_(float("nan"))
        save_file(tensors, scratch / "model.safetensors", metadata={"format": "pt"})

    return build_once(folder, build)
