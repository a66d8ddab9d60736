"""What a draft brings, measured on held-out prompts: the report, its table and the model card."""

import json
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sgl_spec.cpu.linear import Storage, kept
from sgl_spec.draft.model import EMBEDDING, HEAD, IDS_FILE, read_card, read_hot_ids
from sgl_spec.errors import ConfigError
from sgl_spec.train.evaluate import POSITIONS, TaskScore, score
from sgl_spec.train.gain import Gain, best_length, forward_costs
from sgl_spec.train.shards import Sequence
from sgl_spec.train.steptime import step_ms
from sgl_spec.train.student import student_from
from sgl_spec.train.texts import held_out_answers


@dataclass(frozen=True)
class Proof:
    """Scores and predicted gain by task, the time of one draft step, the size of what the target does not hold.

    `gains` is empty for a target that is too large to be timed here.
    """

    scores: dict[str, TaskScore]
    gains: dict[str, Gain]
    draft_step_ms: float
    file_mb: float
    provenance: dict[str, Any]

    def document(self) -> dict[str, Any]:
        """The JSON document of `sgl-spec distill evaluate`."""
        return {
            "acceptance": {task: round(s.acceptance, 4) for task, s in self.scores.items()},
            "hot_head_coverage": {task: round(s.coverage, 4) for task, s in self.scores.items()},
            "draft_step_ms": round(self.draft_step_ms, 3),
            "file_mb": round(self.file_mb, 2),
            "provenance": self.provenance,
            "predicted": {
                task: {
                    "num_speculative_tokens": gain.num_speculative_tokens,
                    "tokens_per_s": round(gain.tokens_per_s, 2),
                    "plain_tokens_per_s": round(gain.plain_tokens_per_s, 2),
                }
                for task, gain in self.gains.items()
            },
        }


def evaluate(draft: Path, target: Path) -> dict[str, Any]:
    """Acceptance, coverage, step time and size of the folder `draft` on held-out prompts of `target`."""
    return prove(draft, target, held_out_answers(target)).document()


def prove(draft: Path, target: Path, answers: list[Sequence]) -> Proof:
    """Judge `draft` on `answers`, greedy answers of `target` that no training saw."""
    for folder, knob in ((draft, "draft"), (target, "target")):
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{knob}={folder} has no config.json; give a Hugging Face model folder.")
    vocabulary = _vocabulary(target)
    if _vocabulary(draft) != vocabulary:
        raise ConfigError(
            f"draft={draft} has {_vocabulary(draft)} tokens and its target {vocabulary}; "
            "a draft must share its target's vocabulary."
        )
    hot_ids = read_hot_ids(draft)
    card = read_card(draft)
    storage: Storage = card.head_storage if card else "fp32"  # type: ignore[assignment]
    student = student_from(draft, hot_ids if hot_ids is not None else list(range(vocabulary)))
    student.head = kept(student.head, storage)
    facts = dict(card.provenance or {}) if card else {}
    facts |= {
        "held_out_answers": len(answers),
        "held_out_tokens": sum(len(s.tokens) - s.start for s in answers),
    }
    scores, step = score(student, answers), step_ms(student, storage)
    costs = forward_costs(target, POSITIONS + 1)
    return Proof(
        scores=scores,
        gains={task: best_length(s.by_position, step, costs) for task, s in scores.items()} if costs else {},
        draft_step_ms=step,
        file_mb=own_megabytes(draft),
        provenance=facts,
    )


def own_megabytes(draft: Path) -> float:
    """Megabytes (1e6) of a draft's own tensors in bf16 and of its hot ids: what has to be shipped."""
    from safetensors import safe_open

    card = read_card(draft)
    shared = {HEAD} if card and card.own_embeddings else {HEAD, EMBEDDING}
    own = 0
    for file in draft.glob("*.safetensors"):
        if file.name == IDS_FILE:
            own += file.stat().st_size
            continue
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                if name not in shared:
                    size = 2
                    for n in tensors.get_slice(name).get_shape():
                        size *= n
                    own += size
    return own / 1e6


def _vocabulary(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"])


def provenance() -> dict[str, Any]:
    """Commit, versions and machine, as far as they are known."""
    facts: dict[str, Any] = {
        "commit": _commit(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    for package in ("sgl-spec", "torch", "transformers"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "not installed as a package"
    return facts


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "not a checkout"


def rows(before: dict[str, TaskScore] | None, after: Proof) -> list[tuple[str, ...]]:
    """Table rows in the order of `COLUMNS`."""
    return [
        (
            task,
            f"{before[task].acceptance:.3f}" if before else "-",
            f"{s.acceptance:.3f}",
            " ".join(f"{rate:.2f}" for rate in s.by_position),
            f"{s.coverage:.3f}",
            speed(after.gains.get(task)),
            str(s.tokens),
        )
        for task, s in after.scores.items()
    ]


COLUMNS = (
    "task",
    "before",
    "after",
    "by position, given all before",
    "hot-head coverage",
    "predicted tokens/s",
    "tokens",
)


def speed(gain: Gain | None) -> str:
    """Return plain and predicted speed with the draft length that gives it."""
    if gain is None:
        return "-"
    return f"{gain.plain_tokens_per_s:.1f} -> {gain.tokens_per_s:.1f} (K={gain.num_speculative_tokens})"


def model_card(
    proof: Proof, before: dict[str, TaskScore], target_name: str, licence: str, *, own_embeddings: bool = False
) -> str:
    """The README of a draft folder."""
    origin = "Its head is the target's;" if own_embeddings else "Embeddings and head are the target's;"
    facts = proof.provenance
    head = " | ".join(COLUMNS)
    body = "\n".join(f"| {' | '.join(row)} |" for row in rows(before, proof))
    known = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    return f"""# Draft for {target_name}

A small Llama model that guesses what {target_name} will say next, for lossless speculative decoding with
sgl-spec. It was distilled from text that {target_name} generated itself. {origin} the licence of the target applies:
{licence}.

Acceptance per token on greedy answers to prompts that training never saw:

| {head} |
|{" --- |" * len(COLUMNS)}
{body}

- draft step: {proof.draft_step_ms:.2f} ms (one token, one caller thread, 256 tokens of context)
- own tensors and hot ids: {proof.file_mb:.1f} MB
{known}
"""
