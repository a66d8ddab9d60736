"""The training loop: AdamW, warm-up and cosine, checkpoints from which a run continues bit for bit."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from sgl_spec.errors import ConfigError
from sgl_spec.train.config import TrainConfig
from sgl_spec.train.corpus import Corpus
from sgl_spec.train.loss import HotHeadLoss, labels
from sgl_spec.train.student import Student

CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True)
class Progress:
    """What one optimiser step reports: 1-based `step`, mean loss in nats, seconds that are left."""

    step: int
    steps: int
    loss: float
    seconds_left: float


def rate(config: TrainConfig, step: int) -> float:
    """Learning rate of 0-based `step`: linear warm-up, then a cosine down to `final_rate` of the peak."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    share = config.final_rate + (1 - config.final_rate) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return config.learning_rate * share


def train(
    student: Student,
    corpus: Corpus,
    config: TrainConfig,
    folder: Path,
    *,
    report: Callable[[Progress], None] | None = None,
    stop_after: int | None = None,
) -> list[float]:
    """Train `student` in place and return the loss of each step, those before a resume included.

    `folder` gets a checkpoint every `checkpoint_every` steps and at the end; if it already holds one of the
    same config and vocabulary, training continues there. `stop_after` ends the run early, after that step,
    without changing the schedule. A checkpoint replaces the last one only when it is complete.
    """
    student.to(config.device)
    optimizer = torch.optim.AdamW(
        student.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=config.weight_decay
    )
    losses = _restore(student, optimizer, config, folder)
    hot_index = torch.full((len(student.embedding),), -1, dtype=torch.int64, device=config.device)
    hot_index[student.hot_ids] = torch.arange(len(student.hot_ids), device=config.device)
    last = min(config.steps, stop_after or config.steps)
    started, first = time.monotonic(), len(losses)
    batches = corpus.batches(config.tokens_per_step, config.seed, first)
    for step in range(first, last):
        batch = next(batches)
        tokens, rows, top_ids, top_logp = (
            torch.from_numpy(np.ascontiguousarray(part)).to(config.device)
            for part in (batch.tokens, batch.rows, batch.top_ids, batch.top_logp)
        )
        index, weight = labels(top_ids, top_logp, hot_index, config.soft_share)
        loss = HotHeadLoss.apply(student(tokens, batch.lengths)[rows], student.head, index, weight)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), config.gradient_clip)
        for group in optimizer.param_groups:
            group["lr"] = rate(config, step)
        optimizer.step()
        losses.append(float(loss.detach()))
        pace = (time.monotonic() - started) / (step + 1 - first)
        if report is not None:
            report(Progress(step + 1, config.steps, losses[-1], pace * (config.steps - step - 1)))
        if (step + 1) % config.checkpoint_every == 0 or step + 1 == last:
            _save(student, optimizer, config, losses, folder)
    return losses


def _save(
    student: Student, optimizer: torch.optim.Optimizer, config: TrainConfig, losses: list[float], folder: Path
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f".{CHECKPOINT}.{os.getpid()}"
    state = {
        "config": asdict(config),
        "hot_ids": student.hot_ids.cpu(),
        "student": student.state_dict(),
        "optimizer": optimizer.state_dict(),
        "losses": losses,
    }
    try:
        torch.save(state, scratch)
        scratch.replace(folder / CHECKPOINT)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"checkpoint folder {folder} cannot be written ({error}); free some disk space and run the same "
            "command again: the last checkpoint is intact."
        ) from error
    finally:
        scratch.unlink(missing_ok=True)


def _restore(student: Student, optimizer: torch.optim.Optimizer, config: TrainConfig, folder: Path) -> list[float]:
    path = folder / CHECKPOINT
    if not path.is_file():
        return []
    state = torch.load(path, map_location=config.device, weights_only=True)
    made_with = TrainConfig(**state["config"])
    wrong = [name for name in TrainConfig.names() if getattr(made_with, name) != getattr(config, name)]
    if wrong:
        name = wrong[0]
        raise ConfigError(
            f"checkpoint {path} was made with {name}={getattr(made_with, name)}, "
            f"not {getattr(config, name)}; give the same value or another folder."
        )
    if not torch.equal(state["hot_ids"].cpu(), student.hot_ids.cpu()):
        raise ConfigError(f"checkpoint {path} has another hot-token head; give another folder.")
    student.load_state_dict(state["student"])
    optimizer.load_state_dict(state["optimizer"])
    losses: list[float] = state["losses"]
    return losses
