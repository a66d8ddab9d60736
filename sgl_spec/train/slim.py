"""A student narrower than its target: fewer attention heads and MLP neurons, the strongest kept.

The residual width stays the target's, since its embeddings and head are used as they are. Heads go by groups (the
query heads that share one KV head), neurons one by one; a group's or a neuron's strength is the product of the
Frobenius norms of its matrices, a bound on what it can add to the residual stream.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sgl_spec.errors import ConfigError

Layer = dict[str, Tensor]  # a layer's weights by their Hugging Face names without the layer's prefix


@dataclass(frozen=True)
class Slim:
    """What to keep of each layer: query heads and MLP neurons; None keeps all."""

    heads: int | None = None
    mlp_width: int | None = None

    def config(self, config: dict[str, Any]) -> dict[str, Any]:
        """The target's config with the student's sizes; ConfigError for sizes that it cannot be cut to."""
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        group, inner = heads // kv_heads, config["intermediate_size"]
        keep = heads if self.heads is None else self.heads
        width = inner if self.mlp_width is None else self.mlp_width
        if keep % group or not group <= keep <= heads:
            raise ConfigError(
                f"heads={keep} does not fit a target with {heads} query heads of which {group} share each KV head; "
                f"use a multiple of {group} up to {heads}."
            )
        if not 1 <= width <= inner:
            raise ConfigError(f"mlp_width={width} is outside the target's 1 to {inner} neurons.")
        return config | {
            "num_attention_heads": keep,
            "num_key_value_heads": keep // group,
            "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
            "intermediate_size": width,
        }


def slimmed(layer: Layer, before: dict[str, Any], after: dict[str, Any]) -> Layer:
    """`layer` of a model of config `before` cut to the sizes of `after`, see `Slim.config`."""
    kv_heads, keep, size = before["num_key_value_heads"], after["num_key_value_heads"], after["head_dim"]
    group = before["num_attention_heads"] // kv_heads
    out = dict(layer)
    if keep < kv_heads:
        q, k, v, o = (f"self_attn.{name}_proj.weight" for name in "qkvo")
        query, key, value = (layer[name].unflatten(0, (kv_heads, -1)) for name in (q, k, v))
        result = layer[o].unflatten(1, (kv_heads, group * size))
        strength = value.norm(dim=(1, 2)) * result.norm(dim=(0, 2))
        best = strength.topk(keep).indices.sort().values
        out |= {name: part[best].flatten(0, 1) for name, part in ((q, query), (k, key), (v, value))}
        out[o] = result[:, best].flatten(1, 2)
    if after["intermediate_size"] < before["intermediate_size"]:
        gate, up, down = (f"mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
        strength = layer[gate].norm(dim=1) * layer[up].norm(dim=1) * layer[down].norm(dim=0)
        best = strength.topk(after["intermediate_size"]).indices.sort().values
        out |= {gate: layer[gate][best], up: layer[up][best], down: layer[down][:, best]}
    return {name: value.contiguous() for name, value in out.items()}
