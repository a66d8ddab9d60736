"""Drafts for a target: from the table of families and from local folders, best first.

The order is the rule of thumb that needs no measurement: shared token ids, then at least 5 (else 3) times
faster, the target's family, enough context, a licence that allows use, and last the size whose ratio
is nearest to those of published pairs. Acceptance decides in the end, and only measuring shows it.
"""

from math import log
from pathlib import Path

from pydantic import BaseModel

from sgl_spec.advise.benefit import Benefit, benefit
from sgl_spec.advise.families import Known, find, known_models, same_tokenizer
from sgl_spec.advise.hardware import Hardware
from sgl_spec.advise.overlap import overlap, read_vocabulary
from sgl_spec.advise.plan import GB, Model
from sgl_spec.advise.shape import shape_from_folder
from sgl_spec.errors import ConfigError

GOOD_RATIO, LEAST_RATIO = 5.0, 3.0
# Between the best pairs of the two papers on speculative sampling: 70B with 4B (Chen et al. 2023) and
# 11B with 77M (Leviathan et al. 2023), that is 17.5 and 143 times.
PUBLISHED_RATIO = 50.0
OPEN = ("apache", "mit", "bsd", "community")
ARTICLE = {("72B", "7B")}  # sizes of the article's pair, inside one family


class Candidate(BaseModel):
    """One possible draft, with all that speaks for and against it."""

    name: str
    folder: Path | None = None
    family: str
    same_family: bool
    vocabulary_overlap: float | None
    times_faster: float
    context: int
    context_enough: bool
    licence: str
    memory_gb: float
    kv_percent_of_target: float
    article_claim: bool = False
    usable: bool
    why: str
    benefit: Benefit


class Use(BaseModel):
    """What the pair is for: where it runs, requests at once, tokens per request, price of an hour."""

    hardware: Hardware
    requests: int = 1
    context: int = 4096
    price_per_hour: float | None = None


class Target(BaseModel):
    """The target with what is known of it."""

    name: str
    model: Model
    known: Known | None = None
    vocabulary: dict[str, int] | None = None


def read_target(name: str, model: Model) -> Target:
    """The target called `name`: its row in the table if it has one, its vocabulary if it is a folder."""
    vocabulary = read_vocabulary(model.folder) if model.folder else None
    return Target(name=name, model=model, known=find(model.shape.name), vocabulary=vocabulary)


def candidates(target: Target, folders: list[Path], use: Use) -> list[Candidate]:
    """All smaller models that are known or lie in `folders`, best first."""
    found = []
    for known in known_models():
        related = target.known is not None and same_tokenizer(known.family, target.known.family)
        if related and known.shape.parameters < target.model.shape.parameters:
            model = target.model.model_copy(update={"shape": known.shape, "folder": None})
            found.append(_judge(target, model, use, known, None))
    for folder in folders:
        model = target.model.model_copy(update={"shape": shape_from_folder(folder), "folder": folder})
        if model.shape.parameters < target.model.shape.parameters:
            share = _share(target, folder)
            found.append(_judge(target, model, use, find(folder.name), share))
    return sorted(found, key=_order)


def model_folders(root: Path) -> list[Path]:
    """`root` and the folders up to two levels below it that hold a config.json."""
    if not root.is_dir():
        raise ConfigError(f"search={root} is no folder: name one that holds model folders.")
    patterns = ("config.json", "*/config.json", "*/*/config.json")
    return sorted({path.parent for pattern in patterns for path in root.glob(pattern)})


def _share(target: Target, folder: Path) -> float | None:
    vocabulary = read_vocabulary(folder)
    if target.vocabulary is None or vocabulary is None:
        return None
    return overlap(target.vocabulary, vocabulary)


def _judge(target: Target, model: Model, use: Use, known: Known | None, share: float | None) -> Candidate:
    shape = model.shape
    related = bool(known and target.known and same_tokenizer(known.family, target.known.family))
    same = bool(known and target.known and known.family == target.known.family)
    share = 1.0 if share is None and related else share
    ratio = use.hardware.step_s(target.model, 1) / use.hardware.step_s(model, 1)
    gain = benefit(target.model, model, use.hardware, use.requests, use.price_per_hour)
    usable, why = _verdict(share, ratio, gain, shape.context, use.context)
    sizes = (target.model.shape.name.split("-"), shape.name.split("-"))
    return Candidate(
        name=shape.name,
        folder=model.folder,
        family=known.family if known else "unknown",
        same_family=same,
        vocabulary_overlap=share,
        times_faster=ratio,
        context=shape.context,
        context_enough=shape.context >= use.context,
        licence=known.licence if known else _licence(model.folder),
        memory_gb=model.weight_bytes / GB,
        kv_percent_of_target=100 * model.kv_bytes_per_token(1) / target.model.kv_bytes_per_token(1),
        article_claim=same and any(big in sizes[0] and small in sizes[1] for big, small in ARTICLE),
        usable=usable,
        why=why,
        benefit=gain,
    )


def _verdict(share: float | None, ratio: float, gain: Benefit, limit: int, context: int) -> tuple[bool, str]:
    """(worth measuring, one sentence)."""
    if share is not None and share < 1.0:
        return False, f"only {share:.1%} of the target's token ids are its own: distil a draft instead"
    if gain.break_even_acceptance is None:
        return False, f"{ratio:.1f} times faster: slower than plain decoding at any acceptance"
    if ratio < LEAST_RATIO:
        return (
            False,
            f"only {ratio:.1f} times faster: it would need {gain.break_even_acceptance:.0%} acceptance",
        )
    notes = [f"pays from {gain.break_even_acceptance:.0%} acceptance on"]
    if share is None:
        notes.append("its token ids could not be compared: no tokenizer.json on one side")
    if ratio < GOOD_RATIO:
        notes.append(f"{ratio:.1f} times faster is little")
    if limit < context:
        notes.append(f"drafts only the first {limit} tokens of a request")
    return True, "; ".join(notes)


def _order(candidate: Candidate) -> tuple[bool, bool, bool, bool, bool, float]:
    """Sort key, best first."""
    restricted = not any(word in candidate.licence.lower() for word in OPEN)
    return (
        not candidate.usable,
        candidate.times_faster < GOOD_RATIO,
        not candidate.same_family,
        not candidate.context_enough,
        restricted,
        abs(log(candidate.times_faster / PUBLISHED_RATIO)),
    )


def _licence(folder: Path | None) -> str:
    """Licence named in the front matter of a folder's README.md."""
    card = folder / "README.md" if folder else None
    if card is None or not card.is_file():
        return "not stated"
    for line in card.read_text(encoding="utf-8", errors="replace").splitlines()[:40]:
        if line.startswith("license:"):
            return line.partition(":")[2].strip() or "not stated"
    return "not stated"
