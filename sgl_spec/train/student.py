"""The student: a few Llama layers between the target's embeddings and the hot rows of its head.

Module and parameter names are those of Hugging Face's Llama, so a state dict is a model file. Sequences are
packed: activations are `[N, width]` over all tokens of a batch, attention runs within each sequence.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sgl_spec.draft.model import EMBEDDING, HEAD
from sgl_spec.errors import ConfigError
from sgl_spec.train.slim import Slim, slimmed

FULL = Slim()


class Student(nn.Module):
    """Layers and final norm are trained; `head` is the target's and frozen, `embedding` too unless it is to be tuned.

    `embedding` is `[vocabulary, width]`, `head` is `[hot, width]`: the target's head at `hot_ids`.
    """

    embedding: Tensor
    head: Tensor
    hot_ids: Tensor

    def __init__(
        self, config: dict[str, Any], embedding: Tensor, head: Tensor, hot_ids: Tensor, *, tune: bool = False
    ) -> None:
        super().__init__()
        self.config = config
        width = config["hidden_size"]
        self.head_dim = config.get("head_dim") or width // config["num_attention_heads"]
        self.theta = float((config.get("rope_parameters") or config)["rope_theta"])
        self.model = nn.Module()
        self.model.layers = nn.ModuleList(_Layer(config, self.head_dim) for _ in range(config["num_hidden_layers"]))
        self.model.norm = nn.RMSNorm(width, eps=config["rms_norm_eps"])
        self.tuned = tune
        if tune:
            self.embedding = nn.Parameter(embedding.clone())
        else:
            self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("head", head, persistent=False)
        self.register_buffer("hot_ids", hot_ids, persistent=False)

    def forward(self, tokens: Tensor, lengths: list[int]) -> Tensor:
        """Hidden states `[N, width]` after the final norm; packed `tokens` int64 `[N]`, sum(lengths) = N."""
        x = self.embedding[tokens]
        positions = torch.cat([torch.arange(n, device=tokens.device) for n in lengths])
        exponent = torch.arange(0, self.head_dim, 2, device=tokens.device, dtype=torch.float32) / self.head_dim
        angle = positions[:, None].float() / self.theta**exponent
        rotary = (angle.cos()[:, None], angle.sin()[:, None])
        for layer in self.model.layers:
            x = layer(x, rotary, lengths)
        return self.model.norm(x)

    def trained_state(self) -> dict[str, Tensor]:
        """The tensors that the target does not hold, by their Hugging Face names."""
        state = {name: value.detach() for name, value in self.state_dict().items()}
        if self.tuned:
            state[EMBEDDING] = state.pop("embedding")
        return state


class _Layer(nn.Module):
    def __init__(self, config: dict[str, Any], head_dim: int) -> None:
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        self.shape = (config["num_attention_heads"], config["num_key_value_heads"], head_dim)
        q, kv = self.shape[0] * head_dim, self.shape[1] * head_dim
        self.input_layernorm = nn.RMSNorm(width, eps=config["rms_norm_eps"])
        self.post_attention_layernorm = nn.RMSNorm(width, eps=config["rms_norm_eps"])
        self.self_attn = nn.Module()
        self.self_attn.q_proj = nn.Linear(width, q, bias=False)
        self.self_attn.k_proj = nn.Linear(width, kv, bias=False)
        self.self_attn.v_proj = nn.Linear(width, kv, bias=False)
        self.self_attn.o_proj = nn.Linear(q, width, bias=False)
        self.mlp = nn.Module()
        self.mlp.gate_proj = nn.Linear(width, inner, bias=False)
        self.mlp.up_proj = nn.Linear(width, inner, bias=False)
        self.mlp.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], lengths: list[int]) -> Tensor:
        x = x + self._attend(self.input_layernorm(x), rotary, lengths)
        y = self.post_attention_layernorm(x)
        return x + self.mlp.down_proj(functional.silu(self.mlp.gate_proj(y)) * self.mlp.up_proj(y))

    def _attend(self, x: Tensor, rotary: tuple[Tensor, Tensor], lengths: list[int]) -> Tensor:
        heads, kv_heads, dim = self.shape
        q = _rotate(self.self_attn.q_proj(x).view(-1, heads, dim), *rotary)
        k = _rotate(self.self_attn.k_proj(x).view(-1, kv_heads, dim), *rotary)
        v = self.self_attn.v_proj(x).view(-1, kv_heads, dim)
        k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
        parts = zip(*(t.transpose(0, 1).split(lengths, dim=1) for t in (q, k, v)), strict=True)
        out = [
            functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0] for q, k, v in parts
        ]
        return self.self_attn.o_proj(torch.cat(out, dim=1).transpose(0, 1).reshape(-1, heads * dim))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding with split halves; x `[N, heads, dim]`, cos and sin `[N, 1, dim / 2]`."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def student_of(
    target: Path,
    init_layers: tuple[int, ...],
    hot_ids: list[int],
    initial_norm: float,
    *,
    slim: Slim = FULL,
    tune_embeddings: bool = False,
) -> Student:
    """A student of the folder `target`: its layers `init_layers` cut by `slim`, its final norm times `initial_norm`.

    With `tune_embeddings` its input embeddings start as the target's and are trained.
    """
    config, weights = read_llama(target)
    depth = config["num_hidden_layers"]
    sources = [i + depth if i < 0 else i for i in init_layers]
    if any(not 0 <= i < depth for i in sources):
        raise ConfigError(f"init_layers={init_layers} names a layer beyond the target's {depth}; use 0 to {depth - 1}.")
    own = slim.config(config) | {"num_hidden_layers": len(sources)}
    if tune_embeddings:
        own["tie_word_embeddings"] = False
    student = _empty(own, weights, hot_ids, tune=tune_embeddings)
    state = {"model.norm.weight": weights["model.norm.weight"] * initial_norm}
    for place, source in enumerate(sources):
        prefix = f"model.layers.{source}."
        layer = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        state |= {f"model.layers.{place}.{name}": value for name, value in slimmed(layer, config, own).items()}
    if tune_embeddings:
        state["embedding"] = weights[EMBEDDING]
    student.load_state_dict(state)
    return student


def student_from(draft: Path, hot_ids: list[int]) -> Student:
    """The student that a draft folder holds."""
    config, weights = read_llama(draft)
    student = _empty(config, weights, hot_ids)
    student.load_state_dict({n: w for n, w in weights.items() if n.startswith(("model.layers.", "model.norm."))})
    return student


def _empty(config: dict[str, Any], weights: dict[str, Tensor], hot_ids: list[int], *, tune: bool = False) -> Student:
    embedding = weights[EMBEDDING]
    ids = torch.tensor(hot_ids, dtype=torch.int64)
    return Student(config, embedding, weights.get(HEAD, embedding)[ids].contiguous(), ids, tune=tune)


def read_llama(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and fp32 weights of a Llama folder; ConfigError names what is not supported."""
    from safetensors.torch import load_file

    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"model folder {folder} has no config.json; give a Hugging Face model folder.") from error
    architecture = (config.get("architectures") or ["unknown"])[0]
    if architecture != "LlamaForCausalLM":
        raise ConfigError(
            f"target {folder.name} has architecture {architecture}; distillation supports LlamaForCausalLM."
        )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default" or config.get("attention_bias") or config.get("mlp_bias"):
        raise ConfigError(
            f"target {folder.name} scales its rotary positions or has biases; distillation supports neither."
        )
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"model folder {folder} holds no .safetensors file; convert its weights first.")
    weights = {name: value.float() for file in files for name, value in load_file(file).items()}
    return config, weights
