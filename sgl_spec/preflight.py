"""Everything about a start that can be refused before a model is loaded: one sentence each."""

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgl_spec.config import SpecConfig
from sgl_spec.errors import ConfigError, VocabularyError
from sgl_spec.unsupported import refuse
from sgl_spec.weight_files import check_weight_files

JSON_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.gguf", "*.pt")


def check_start(config: SpecConfig, server_args: Mapping[str, Any], host: str, port: int) -> list[str]:
    """Raise ConfigError for the first thing that would make this start fail or go wrong.

    Returns "name=value (reason)" of each setting that was worked out on the way.
    """
    refuse(server_args.get)
    found = []
    check_draft_flags(config, server_args)
    check_folder("model_path", config.model_path)
    for path in config.draft_model_paths:
        check_folder("draft_model_path", path)
        found += check_vocabulary(config, path)
    check_port(host, port)
    return found


def check_draft_flags(config: SpecConfig, server_args: Mapping[str, Any]) -> None:
    """SGLang's three flags for the draft length must agree with ours where they are given too."""
    steps = server_args.get("speculative_num_steps")
    tokens = server_args.get("speculative_num_draft_tokens")
    ours = config.num_speculative_tokens
    if steps is not None and tokens is not None and tokens != steps + 1:
        raise ConfigError(
            f"speculative_num_steps={steps} and speculative_num_draft_tokens={tokens} contradict each other "
            f"(the second counts the bonus token: {steps} + 1): give num_speculative_tokens alone"
        )
    implied = steps if steps is not None else None if tokens is None else tokens - 1
    if implied is not None and implied != ours:
        raise ConfigError(
            f"num_speculative_tokens={ours} contradicts speculative_num_steps or speculative_num_draft_tokens, "
            f"which say {implied}: give num_speculative_tokens alone"
        )


def is_local(path: str) -> bool:
    """Whether `path` is meant as a folder rather than as a hub name ("owner/name")."""
    return Path(path).exists() or path.startswith(("/", "./", "../", "~")) or path.count("/") != 1


def check_folder(knob: str, path: str) -> None:
    """A local model folder must hold a config and weights, and not be a LoRA adapter."""
    if not is_local(path):
        return
    folder = Path(path).expanduser()
    if not folder.exists():
        raise ConfigError(f"{knob}={path} does not exist: name a model folder or a hub name such as owner/model")
    if folder.is_file():
        if folder.suffix != ".gguf":
            raise ConfigError(f"{knob}={path} is a file, not a model folder")
        return
    if (folder / "adapter_config.json").exists():
        raise ConfigError(
            f"{knob}={path} is a LoRA adapter, not a model: merge it into its base model and name the merged folder"
        )
    if not (folder / "config.json").exists():
        raise ConfigError(f"{knob}={path} has no config.json: name a folder in Hugging Face format")
    config = read_config(path)
    for name in JSON_FILES:
        if (folder / name).exists():
            read_object(folder / name)
    if not any(next(folder.glob(pattern), None) for pattern in WEIGHT_PATTERNS):
        raise ConfigError(f"{knob}={path} has no weights (*.safetensors): copy them there or name another folder")
    check_shards(knob, folder)
    check_weight_files(knob, folder, config)


def check_shards(knob: str, folder: Path) -> None:
    """Every shard that the index names must be there."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return
    try:
        named = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{knob}={folder}: {index.name} is not readable ({error}): copy it again") from None
    missing = sorted(str(name) for name in named if not (folder / str(name)).exists())
    if missing:
        raise ConfigError(f"{knob}={folder} lacks {len(missing)} of {len(named)} shards, first {missing[0]}: copy them")


def read_config(path: str) -> dict[str, Any]:
    """Return a local folder's config.json; raises ConfigError where it is not JSON."""
    return read_object(Path(path).expanduser() / "config.json")


def read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object of a model's file; raises ConfigError where there is none."""
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): copy the model folder again") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON ({error}): copy the model folder again") from None
    if not isinstance(held, dict):
        raise ConfigError(f"{file} holds no JSON object: copy the model folder again")
    return held


def check_vocabulary(config: SpecConfig, draft: str) -> list[str]:
    """A local draft must be able to speak to its target; hub names are checked by the engine after download.

    Returns how it will, with what is lost, where their vocabularies differ.
    """
    target = config.model_path
    if not (Path(target).is_dir() and Path(draft).is_dir()):
        return []
    from sgl_spec.draft.vocab import SharedVocabulary, VocabularyMap, relate, shared_by_file

    if shared_by_file(target, draft) is not None:
        return []
    from transformers import AutoTokenizer

    try:
        tokenizers = [AutoTokenizer.from_pretrained(path) for path in (target, draft)]
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(
            f"The tokenizer of {target} or {draft} cannot be loaded ({first}): complete the folder"
        ) from None
    sizes = [read_config(path).get("vocab_size", len(t)) for path, t in zip((target, draft), tokenizers, strict=True)]
    try:
        relation = relate(*tokenizers, *sizes, mode=config.draft_vocabulary)
    except VocabularyError as error:
        raise VocabularyError(f"draft_model_path={draft} does not fit model_path={target}. {error}") from None
    if len(config.draft_model_paths) > 1 and not isinstance(relation, SharedVocabulary):
        raise VocabularyError(
            f"draft_model_path={draft} has another vocabulary than model_path={target}, and several draft models must "
            "share the target's: name that draft alone, or leave it out"
        )
    if isinstance(relation, SharedVocabulary):
        return []
    way = "tokens" if isinstance(relation, VocabularyMap) else "text"
    return [f"draft_vocabulary={way} ({relation.sentence()})"]


def check_port(host: str, port: int) -> None:
    """The port must be free."""
    if not 0 < port < 65536:
        raise ConfigError(f"port={port} is not a port number: use one between 1 and 65535")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise ConfigError(f"port={port} on host={host} cannot be used ({error.strerror}): choose another") from None


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
