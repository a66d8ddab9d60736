"""The knobs of a distillation, each once: unit, range, default."""

from dataclasses import dataclass, fields

from sgl_spec.draft.model import HEAD_STORAGE
from sgl_spec.errors import ConfigError
from sgl_spec.train.slim import Slim


@dataclass(frozen=True)
class TrainConfig:
    """How a student is built and trained; a checkpoint holds the config that it was made with."""

    #: Target layers that the student starts from, in order; its depth is their number; -1 is the last one.
    #: The first layers read embeddings already; later ones expect what the layers between would have made of
    #: them, and start far worse (loss 58 against 16 nats).
    init_layers: tuple[int, ...] = (0, 1)
    #: Query heads and MLP neurons of each layer, the strongest of the target's; None keeps all.
    heads: int | None = None
    mlp_width: int | None = None
    #: Train the input embeddings too; the draft then holds a matrix [vocabulary, width] of its own.
    tune_embeddings: bool = False
    #: How the engine keeps the hot rows of the head: fp32, bf16 or int8.
    head_storage: str = "bf16"
    #: Factor on the target's final norm at the start: a shallow student is less sure than its target
    #: (measured on the demo target: 15.8 nats at 1.0, 6.9 at 0.25).
    initial_norm: float = 0.25
    #: Size of the hot-token head, in tokens: the draft proposes only these.
    hot_tokens: int = 12288
    #: Optimiser steps in all.
    steps: int = 1000
    #: Answer tokens per optimiser step.
    tokens_per_step: int = 2048
    #: Peak learning rate of AdamW, reached after `warmup_steps`, then a cosine to `final_rate` times it.
    learning_rate: float = 1e-3
    warmup_steps: int = 40
    final_rate: float = 0.03
    weight_decay: float = 0.0
    gradient_clip: float = 1.0
    #: Share of the target's own probabilities in the label; the rest is its most probable token.
    soft_share: float = 0.5
    #: Seed of the order of the data.
    seed: int = 0
    #: Steps between two checkpoints.
    checkpoint_every: int = 100
    #: "cpu" or "cuda".
    device: str = "cpu"

    def __post_init__(self) -> None:
        positive = (
            "hot_tokens",
            "steps",
            "tokens_per_step",
            "learning_rate",
            "gradient_clip",
            "checkpoint_every",
        )
        for name in positive:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name)} is not positive; give a value above 0.")
        for name in ("final_rate", "soft_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)} is no share; give a value from 0 to 1.")
        if not self.init_layers:
            raise ConfigError("init_layers is empty; name at least one layer of the target, for example 0.")
        if self.head_storage not in HEAD_STORAGE:
            raise ConfigError(f"head_storage={self.head_storage!r} is unknown; use one of {', '.join(HEAD_STORAGE)}.")
        if self.device not in ("cpu", "cuda"):
            raise ConfigError(f"device={self.device!r} is unknown; use 'cpu' or 'cuda'.")

    @property
    def slim(self) -> Slim:
        """What is kept of each layer."""
        return Slim(self.heads, self.mlp_width)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """All knobs, in the order of their definition."""
        return tuple(field.name for field in fields(cls))
