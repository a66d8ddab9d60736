"""Distillation from end to end: text of the target, a student, its training, the proof, the draft folder."""

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from sgl_spec.draft.model import DraftCard, assemble, write_shipped
from sgl_spec.errors import ConfigError
from sgl_spec.train.config import TrainConfig
from sgl_spec.train.corpus import Corpus
from sgl_spec.train.evaluate import TaskScore, score
from sgl_spec.train.loop import Progress, train
from sgl_spec.train.proof import Proof, model_card, prove, provenance
from sgl_spec.train.shards import Sequence
from sgl_spec.train.student import Student, read_llama, student_of
from sgl_spec.train.texts import held_out_answers, labelled_text, training_answers

_CHECKS = 4  # times during training at which the gain is looked at


@dataclass(frozen=True)
class Reporter:
    """Where a distillation says what it does: a line of text, counts of a phase, steps of the training."""

    say: Callable[[str], None] = lambda text: None  # noqa: ARG005
    count: Callable[[str, int, int], None] = lambda phase, done, of: None  # noqa: ARG005
    step: Callable[[Progress], None] = lambda progress: None  # noqa: ARG005


@dataclass(frozen=True)
class Result:
    """A finished distillation; `helps` is False if no task gained `stop_if_gain_below`."""

    folder: Path
    before: dict[str, TaskScore]
    proof: Proof
    losses: list[float]
    helps: bool


def distill(
    target: Path,
    out: Path,
    config: TrainConfig | None = None,
    *,
    text_files: list[Path] | None = None,
    answer_tokens: int = 400_000,
    stop_if_gain_below: float = 0.0,
    reporter: Reporter | None = None,
) -> Result:
    """Make a draft for the model folder `target` in the new folder `out` and prove what it brings.

    Args:
        target: a Llama folder of Hugging Face with a fast tokenizer.
        out: the draft's folder; `<out>.work` beside it keeps checkpoints until the draft is complete.
        config: how to build and train the student.
        text_files: own text (JSON lines or plain), labelled by the target and added to its answers.
        answer_tokens: tokens that the target generates for training; what earlier runs generated is used.
        stop_if_gain_below: training stops early when mean acceptance grew by less since the last of its
            four checks; 0 trains to the end.
        reporter: hears about progress.

    Raises ConfigError for an unsupported target, an existing `out` or a full disk; whatever was trained
    until then is kept in `<out>.work`, and the same call continues there.
    """
    target, out = Path(target), Path(out)
    config, reporter = config or TrainConfig(), reporter or Reporter()
    if out.exists():
        raise ConfigError(f"out={out} exists; remove it or choose another folder.")
    read_llama(target)
    held_out = held_out_answers(target, lambda done, of: reporter.count("held-out answers", done, of))
    answers = training_answers(
        target, answer_tokens, report=lambda done, of: reporter.count("training tokens", done, of)
    )
    if text_files:
        reporter.say(f"labelling {len(text_files)} text files with the target")
        answers = answers + labelled_text(target, text_files)
    return distill_from(
        target,
        out,
        config,
        answers=answers,
        held_out=held_out,
        stop_if_gain_below=stop_if_gain_below,
        reporter=reporter,
    )


def distill_from(
    target: Path,
    out: Path,
    config: TrainConfig,
    *,
    answers: list[Sequence],
    held_out: list[Sequence],
    stop_if_gain_below: float = 0.0,
    reporter: Reporter | None = None,
) -> Result:
    """The second half of `distill`: train on `answers`, judge on `held_out`, write `out`."""
    reporter = reporter or Reporter()
    corpus = Corpus(answers)
    vocabulary = int(json.loads((target / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    hot_ids = corpus.hot_tokens(config.hot_tokens, vocabulary)
    student = student_of(
        target,
        config.init_layers,
        hot_ids,
        config.initial_norm,
        slim=config.slim,
        tune_embeddings=config.tune_embeddings,
    )
    before = score(student, held_out)
    reporter.say(f"training on {corpus.answer_tokens} tokens, {config.steps} steps")
    work = out.with_name(f"{out.name}.work")
    losses = _train_with_checks(student, corpus, config, (held_out, _mean(before)), work, stop_if_gain_below, reporter)
    student.to("cpu")
    facts = provenance() | {
        "training_tokens": corpus.answer_tokens,
        "steps": len(losses),
        "final_loss": round(sum(losses[-20:]) / len(losses[-20:]), 4),
        "config": asdict(config) | {"init_layers": list(config.init_layers)},
    }
    proof = write_draft(
        student, target, out, before=before, held_out=held_out, facts=facts, head_storage=config.head_storage
    )
    shutil.rmtree(work, ignore_errors=True)
    gain = max(proof.scores[task].acceptance - before[task].acceptance for task in proof.scores)
    return Result(out, before, proof, losses, gain > max(stop_if_gain_below, 0.0))


def _train_with_checks(
    student: Student,
    corpus: Corpus,
    config: TrainConfig,
    judge: tuple[list[Sequence], float],
    work: Path,
    stop_if_gain_below: float,
    reporter: Reporter,
) -> list[float]:
    held_out, last = judge
    losses: list[float] = []
    for check in range(1, _CHECKS + 1):
        losses = train(
            student,
            corpus,
            config,
            work,
            report=reporter.step,
            stop_after=max(1, config.steps * check // _CHECKS),
        )
        now = _mean(score(student, held_out))
        reporter.say(f"step {len(losses)}: acceptance {now:.3f} on held-out prompts, {now - last:+.3f}")
        if now - last < stop_if_gain_below:
            reporter.say(f"stopped: the gain is below stop_if_gain_below={stop_if_gain_below}")
            break
        last = now
    return losses


def _mean(scores: dict[str, TaskScore]) -> float:
    return sum(s.acceptance for s in scores.values()) / len(scores)


def write_draft(
    student: Student,
    target: Path,
    out: Path,
    *,
    before: dict[str, TaskScore],
    held_out: list[Sequence],
    facts: dict[str, object],
    head_storage: str = "bf16",
    shipped: Path | None = None,
) -> Proof:
    """Write the complete draft folder `out`, judged as it is stored (layers in bf16), and its card; atomically.

    With `shipped`, the form that leaves out the target's own tensors is kept there as well.
    """
    card = DraftCard(
        target=_name(target), head_storage=head_storage, own_embeddings=student.tuned, provenance=dict(facts)
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
            small, full = Path(scratch) / "shipped", Path(scratch) / "draft"
            full.mkdir()
            config = student.config | {"num_hidden_layers": len(student.model.layers)}
            write_shipped(small, config, student.trained_state(), student.hot_ids.tolist(), card)
            assemble(small, target, full)
            proof = prove(full, target, held_out)
            text = model_card(proof, before, _name(target), _licence(target), own_embeddings=student.tuned)
            for folder in (small, full):
                (folder / "README.md").write_text(text, encoding="utf-8")
            full.rename(out)
            if shipped is not None:
                shutil.copytree(small, shipped, dirs_exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"out={out} cannot be written ({error.strerror or error}); free some disk space and run the same "
            "command again: it continues at the last checkpoint."
        ) from error
    return proof


def _name(target: Path) -> str:
    from sgl_spec.models import TARGET_NAME

    return TARGET_NAME if target.name.startswith(TARGET_NAME) else target.name


def _licence(target: Path) -> str:
    from sgl_spec.models import TARGET_LICENCE, TARGET_NAME

    return TARGET_LICENCE if _name(target) == TARGET_NAME else "see the target's own card"
