"""What a model's config.json says about its size: parameters, KV bytes per token, work per token.

Covers decoder-only transformers with grouped or full attention or multi-head latent attention (MLA),
dense or mixture-of-experts. Everything else is refused with a sentence: no guess is better than a wrong one.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt

from sgl_spec.errors import ConfigError


class Experts(BaseModel):
    """Mixture-of-experts feed-forward: `count` experts of width `ffn`, `active` per token."""

    model_config = ConfigDict(frozen=True)

    count: PositiveInt
    active: PositiveInt
    ffn: PositiveInt
    shared_ffn: int = 0
    dense_layers: int = 0


class Latent(BaseModel):
    """Multi-head latent attention (DeepSeek-V2, section 2.1): one compressed vector per token and layer."""

    model_config = ConfigDict(frozen=True)

    kv_rank: PositiveInt
    rope_dim: PositiveInt
    nope_dim: PositiveInt
    value_dim: PositiveInt
    q_rank: int = 0


class ModelShape(BaseModel):
    """Sizes of one model. Counts are parameters or elements, never bytes."""

    model_config = ConfigDict(frozen=True)

    name: str
    layers: PositiveInt
    hidden: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    ffn: PositiveInt
    vocab: PositiveInt
    context: PositiveInt
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: Experts | None = None
    latent: Latent | None = None
    stored_bits: float | None = None

    @property
    def embedding_parameters(self) -> int:
        """Input embeddings, and the output head unless it is the same matrix."""
        return self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def norm_parameters(self) -> int:
        """Weights of the normalisations and biases, which no quantisation touches."""
        per_layer = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        bias = (self.heads + 2 * self.kv_heads) * self.head_dim if self.qkv_bias else 0
        return self.layers * (per_layer + bias) + self.hidden

    @property
    def linear_parameters(self) -> int:
        """Matrices of attention and feed-forward: what a quantisation shrinks."""
        return self.layers * self._attention + self._feed_forward(active=False)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.embedding_parameters + self.norm_parameters + self.linear_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one decoded token reads: active experts only, the head but no embedding table."""
        linear = self.layers * self._attention + self._feed_forward(active=True)
        return linear + self.norm_parameters + self.vocab * self.hidden

    @property
    def kv_elements_per_token(self) -> int:
        """Elements that one token keeps in the KV cache, over all layers."""
        if self.latent:
            return self.layers * (self.latent.kv_rank + self.latent.rope_dim)
        return self.layers * 2 * self.kv_heads * self.head_dim

    def kv_elements_per_device(self, tp_size: int) -> int:
        """As above, on one of `tp_size` devices: whole heads are split, and fewer heads are copied."""
        if self.latent or tp_size == 1:
            return self.kv_elements_per_token
        return self.layers * 2 * max(1, -(-self.kv_heads // tp_size)) * self.head_dim

    @property
    def _attention(self) -> int:
        if self.latent is None:
            return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        m, query = self.latent, self.heads * (self.latent.nope_dim + self.latent.rope_dim)
        q = m.q_rank * (self.hidden + query) if m.q_rank else self.hidden * query
        kv = self.hidden * (m.kv_rank + m.rope_dim) + m.kv_rank * self.heads * (m.nope_dim + m.value_dim)
        return q + kv + self.heads * m.value_dim * self.hidden

    def _feed_forward(self, *, active: bool) -> int:
        if self.experts is None:
            return self.layers * 3 * self.hidden * self.ffn
        e = self.experts
        width = (e.active if active else e.count) * e.ffn + e.shared_ffn
        sparse = (self.layers - e.dense_layers) * self.hidden * (3 * width + e.count)
        return sparse + e.dense_layers * 3 * self.hidden * self.ffn


def shape_from_folder(folder: Path) -> ModelShape:
    """Shape of the model in `folder`, from its config.json."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{folder} holds no config.json: name a model folder, or a preset of `sgl-spec plan --list`.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON ({error}): copy the model folder again.") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path} is no JSON object: copy the model folder again.")
    return shape_from_config(folder.resolve().name, config)


def shape_from_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """Shape from the fields of a config.json; `text_config` of a multimodal model is used alone."""
    config = config.get("text_config") or config
    if config.get("is_encoder_decoder"):
        raise ConfigError(f"{name} is an encoder-decoder and speculation needs a decoder: choose another model.")
    foreign = [key for key in ("linear_num_value_heads", "mamba_d_state", "ssm_cfg", "rwkv_layers") if key in config]
    if foreign:
        raise ConfigError(
            f"{name} keeps recurrent state ({foreign[0]}), which the plan does not cover yet: plan by hand."
        )
    try:
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        return ModelShape(
            name=name,
            layers=config["num_hidden_layers"],
            hidden=hidden,
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            ffn=config["intermediate_size"],
            vocab=config["vocab_size"],
            context=config.get("max_position_embeddings") or 2048,
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=bool(config.get("attention_bias", config.get("model_type") == "qwen2")),
            qk_norm=str(config.get("model_type", "")).startswith("qwen3"),
            experts=_experts(config),
            latent=_latent(config),
            stored_bits=_stored_bits(config.get("quantization_config")),
        )
    except KeyError as error:
        raise ConfigError(
            f"the config.json of {name} lacks {error.args[0]!r}: it is no decoder-only transformer."
        ) from None
    except (ValueError, TypeError, ZeroDivisionError):
        raise ConfigError(
            f"the config.json of {name} holds a size that is no whole number above 0: repair it."
        ) from None


def _experts(config: Mapping[str, Any]) -> Experts | None:
    count = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts")
    if not count:
        return None
    ffn = config.get("moe_intermediate_size") or config["intermediate_size"]
    shared = config.get("shared_expert_intermediate_size") or (config.get("n_shared_experts") or 0) * ffn
    return Experts(
        count=count,
        active=config["num_experts_per_tok"],
        ffn=ffn,
        shared_ffn=shared,
        dense_layers=config.get("first_k_dense_replace") or 0,
    )


def _latent(config: Mapping[str, Any]) -> Latent | None:
    if not config.get("kv_lora_rank"):
        return None
    return Latent(
        kv_rank=config["kv_lora_rank"],
        rope_dim=config["qk_rope_head_dim"],
        nope_dim=config["qk_nope_head_dim"],
        value_dim=config["v_head_dim"],
        q_rank=config.get("q_lora_rank") or 0,
    )


def _stored_bits(quantization: Mapping[str, Any] | None) -> float | None:
    """Bits per weight of a checkpoint that is stored quantised; none if it is not."""
    if not quantization:
        return None
    method = str(quantization.get("quant_method", ""))
    bits = quantization.get("bits") or quantization.get("w_bit")
    if bits:
        return float(bits) + 20 / float(quantization.get("group_size") or 128)
    return {"fp8": 8.0, "mxfp4": 4.25, "w8a8_int8": 8.0, "w8a8_fp8": 8.0}.get(method)
