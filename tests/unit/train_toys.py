"""A toy target: two Llama layers of width 128 over 96 tokens, with a tokenizer that Transformers reads."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from sgl_spec.train.generate import Request, common_prefix, generate
from sgl_spec.train.rows import RowModel
from sgl_spec.train.shards import Sequence

VOCABULARY = 96
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 0,
    "dtype": "float32",
}


def toy_target(folder: Path) -> Path:
    """Write the toy target into `folder`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    rng = torch.Generator().manual_seed(0)

    def draw(*shape: int, scale: float = 0.3) -> torch.Tensor:
        return torch.randn(*shape, generator=rng) * scale

    weights = {"model.embed_tokens.weight": draw(VOCABULARY, 128), "model.norm.weight": torch.ones(128)}
    for i in range(2):
        prefix = f"model.layers.{i}."
        shapes = {"q_proj": (128, 128), "k_proj": (64, 128), "v_proj": (64, 128), "o_proj": (128, 128)}
        scales = {"o_proj": 0.02}  # mostly the last token decides, so that one layer can learn it
        for name, shape in shapes.items():
            weights[f"{prefix}self_attn.{name}.weight"] = draw(*shape, scale=scales.get(name, 0.1))
        for name, shape in {"gate_proj": (192, 128), "up_proj": (192, 128), "down_proj": (128, 192)}.items():
            weights[f"{prefix}mlp.{name}.weight"] = draw(*shape, scale=0.2)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = torch.ones(128)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    words = {"<end>": 0, "<unk>": 1} | {f"w{i}": i for i in range(2, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>").save_pretrained(folder)
    return folder


def toy_answers(target: Path, count: int, seed: int, temperature: float = 0.0, new: int = 24) -> list[Sequence]:
    """Answers of the toy target to `count` random prompts."""
    rng = np.random.default_rng(seed)
    requests = [
        Request(
            "chat" if i % 2 else "code",
            (1, *rng.integers(2, VOCABULARY, 4 + i % 3).tolist()),
            temperature,
            new,
        )
        for i in range(count)
    ]
    model = RowModel(target, 9, 64)
    return list(generate(model, requests, 8, frozenset({0}), shared_prefix=common_prefix(requests), top_k=16))
