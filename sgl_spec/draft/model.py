"""A draft model's folder: what is shipped, what is assembled from the target, and its hot-token head.

A draft folder is a complete Llama folder of Hugging Face plus two files: `sgl_spec_draft.json` and
`hot_token_ids.safetensors` (tensor `ids`, int32 `[hot]`, sorted). The shipped form leaves out all that the
target holds: embeddings, head and tokenizer.
"""

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgl_spec.errors import ConfigError
from sgl_spec.rights import usual_rights

if TYPE_CHECKING:
    from torch import Tensor

CARD_FILE = "sgl_spec_draft.json"
IDS_FILE = "hot_token_ids.safetensors"
SHIPPED_WEIGHTS = "draft.safetensors"
HEAD_STORAGE = ("fp32", "bf16", "int8")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


@dataclass(frozen=True)
class DraftCard:
    """The facts of `sgl_spec_draft.json`.

    `hot_token_ids` names the file of the hot ids; `head_storage` is how the engine keeps the hot rows;
    `own_embeddings` says that the input embeddings were trained, not taken from the target.
    """

    target: str
    hot_token_ids: str = IDS_FILE
    head_storage: str = "bf16"
    own_embeddings: bool = False
    provenance: dict[str, Any] | None = None


def read_card(folder: Path) -> DraftCard | None:
    """The card of a draft folder, None if the folder is an ordinary model without a hot head."""
    path = folder / CARD_FILE
    if not path.is_file():
        return None
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        unknown = sorted(set(facts) - {field.name for field in fields(DraftCard)})
        if unknown:
            raise ConfigError(f"draft card {path} has the unknown key {unknown[0]!r}; remove it.")
        card = DraftCard(**facts)
    except (ValueError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"draft card {path} cannot be read ({error}); distil the draft again.") from error
    if card.head_storage not in HEAD_STORAGE:
        raise ConfigError(
            f"head_storage={card.head_storage!r} in {path} is unknown; use one of {', '.join(HEAD_STORAGE)}."
        )
    return card


def read_hot_ids(folder: Path) -> list[int] | None:
    """The sorted ids that the draft in `folder` may propose, None if it proposes the whole vocabulary."""
    from safetensors.numpy import load_file

    card = read_card(folder)
    if card is None:
        return None
    path = folder / card.hot_token_ids
    if not path.is_file():
        raise ConfigError(f"draft folder {folder} lacks {card.hot_token_ids}; distil or assemble it again.")
    ids = [int(i) for i in load_file(path)["ids"]]
    vocabulary = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    if not ids or ids != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= vocabulary:
        raise ConfigError(
            f"hot-token ids in {path} are not sorted ids below the vocabulary's {vocabulary}; distil again."
        )
    return ids


def write_shipped(
    folder: Path, config: dict[str, Any], own: "dict[str, Tensor]", ids: list[int], card: DraftCard
) -> None:
    """Write a draft without what its target holds: `own` tensors as bf16, the hot ids, config and card."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    small = {name: value.to("cpu", torch.bfloat16).contiguous() for name, value in own.items()}
    with usual_rights(folder / SHIPPED_WEIGHTS), usual_rights(folder / IDS_FILE):
        save_file(small, folder / SHIPPED_WEIGHTS, metadata={"format": "pt"})
        save_file({"ids": torch.tensor(sorted(ids), dtype=torch.int32)}, folder / IDS_FILE)
    _write_json(folder / "config.json", config)
    _write_json(folder / CARD_FILE, asdict(card))


def shipped_digest(folder: Path) -> str:
    """SHA-256 over all that decides the assembled folder."""
    digest = hashlib.sha256()
    for name in (SHIPPED_WEIGHTS, IDS_FILE, CARD_FILE, "config.json"):
        path = folder / name
        if not path.is_file():
            raise ConfigError(f"shipped draft {folder} lacks {name}; install the package again.")
        digest.update(path.read_bytes())
    return digest.hexdigest()


def assemble(shipped: Path, target: Path, folder: Path) -> None:
    """Write the complete fp32 model into `folder`: shipped tensors, the target's embeddings and tokenizer."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    weights: dict[str, Tensor] = {}
    for file in sorted(target.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in {EMBEDDING, HEAD} & set(tensors.keys()):
                weights[name] = tensors.get_tensor(name).to(torch.float32)
    own = {name: value.float() for name, value in load_file(shipped / SHIPPED_WEIGHTS).items()}
    if EMBEDDING in own and EMBEDDING in weights:  # then a head that was tied to them is a matrix of its own
        weights.setdefault(HEAD, weights[EMBEDDING])
    config = json.loads((shipped / "config.json").read_text(encoding="utf-8"))
    expected = (config["vocab_size"], config["hidden_size"])
    if EMBEDDING not in weights or tuple(weights[EMBEDDING].shape) != expected:
        raise ConfigError(
            f"target {target} does not hold the {expected[0]} x {expected[1]} embedding of this draft; "
            "use the target that the draft was distilled for."
        )
    with usual_rights(folder / "model.safetensors"):
        save_file(weights | own, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("config.json", IDS_FILE, CARD_FILE, "README.md"):
        if (shipped / name).is_file():
            shutil.copyfile(shipped / name, folder / name)
    for name in _TOKENIZER_FILES:
        if (target / name).is_file():
            shutil.copyfile(target / name, folder / name)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
