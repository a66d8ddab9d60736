"""Drafts made from a target: random weights (every guess is wrong), and noisy copies (some are right)."""

import hashlib
import shutil
from pathlib import Path

from sgl_spec.models import build_once, cache_root

COPIED = ("*.json", "*.txt", "*.jinja")


def kept_folder(target: Path, kind: str) -> Path:
    """Where a draft made from `target` is kept: each shape and tokenizer has its own."""
    digest = hashlib.sha256()
    for file in sorted(target.glob("*.json")):
        digest.update(file.name.encode() + file.read_bytes())
    return cache_root() / "models" / f"{kind}-{digest.hexdigest()[:12]}"


def _with_tokenizer(target: Path, folder: Path) -> None:
    for pattern in COPIED:
        for file in target.glob(pattern):
            if not file.name.endswith("index.json"):
                shutil.copy(file, folder / file.name)


def random_draft(target: Path, folder: Path, layers: int = 1) -> Path:
    """A model of the target's vocabulary and width with `layers` random layers."""

    def build(scratch: Path) -> None:
        import torch
        from transformers import AutoConfig, LlamaForCausalLM

        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(target)
        config.num_hidden_layers = layers
        _with_tokenizer(target, scratch)
        LlamaForCausalLM(config).float().save_pretrained(scratch)

    return build_once(folder, build)


def noisy_draft(target: Path, folder: Path, noise: float) -> Path:
    """The target with `noise` times each matrix's own spread of Gaussian noise added to it."""

    def build(scratch: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "embed" not in name:
                weight.data.add_(torch.randn_like(weight) * weight.std() * noise)
        _with_tokenizer(target, scratch)
        model.save_pretrained(scratch)

    return build_once(folder, build)
