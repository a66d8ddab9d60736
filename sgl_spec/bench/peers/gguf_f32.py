"""A Llama folder of Hugging Face as an F32 GGUF file, with the metadata of a GGUF file of the same tokenizer."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from sgl_spec.gguf_folder import BLOCK_TENSORS, OUTER_TENSORS

SIZES = {
    "llama.block_count": "num_hidden_layers",
    "llama.embedding_length": "hidden_size",
    "llama.feed_forward_length": "intermediate_size",
    "llama.attention.head_count": "num_attention_heads",
    "llama.attention.head_count_kv": "num_key_value_heads",
}
SKIPPED = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


def add_f32_files(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The job with its target and draft as files in `folder` (which holds a GGUF file of the tokenizer), kept there."""
    like = next(path for path in sorted(folder.rglob("*.gguf")) if path.parent != folder)
    files = {}
    for kind in ("target", "draft"):
        model = Path(job[kind])
        digest = hashlib.sha256((model / "config.json").read_bytes())
        for file in sorted(model.glob("*.safetensors")):
            digest.update(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}".encode())
        file = folder / f"{model.name}-{digest.hexdigest()[:12]}.gguf"
        if not file.is_file():
            write_f32(model, like, file.with_suffix(".part")).rename(file)
        files[f"{kind}_gguf"] = str(file)
    return job | files


def write_f32(folder: Path, like: Path, out: Path) -> Path:
    """Write the model of `folder` to `out`, vocabulary and other facts taken from the GGUF file `like`.

    llama.cpp pairs neighbouring rotary columns where Hugging Face pairs halves, so q and k are permuted.
    """
    from gguf import GGUFReader, GGUFWriter
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    reader = GGUFReader(str(like))
    writer = GGUFWriter(str(out), "llama")
    for name, entry in reader.fields.items():
        if name.startswith(SKIPPED):
            continue
        value = config[SIZES[name]] if name in SIZES else entry.contents()
        writer.add_key_value(name, value, entry.types[0], sub_type=entry.types[-1] if len(entry.types) > 1 else None)
    weights: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    for name, tensor in _tensors(weights, config):
        writer.add_tensor(name, np.ascontiguousarray(tensor, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _tensors(weights: dict[str, Any], config: dict[str, Any]) -> list[tuple[str, Any]]:
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    found = []
    for theirs, ours in OUTER_TENSORS.items():
        if f"{ours}.weight" in weights:
            found.append((f"{theirs}.weight", weights[f"{ours}.weight"]))
    for layer in range(config["num_hidden_layers"]):
        for theirs, ours in BLOCK_TENSORS.items():
            tensor = weights[f"model.layers.{layer}.{ours}.weight"]
            kind = ours.rpartition(".")[2]
            if kind in heads:
                rows, columns = tensor.shape
                pairs = tensor.reshape(heads[kind], 2, rows // heads[kind] // 2, columns)
                tensor = pairs.swapaxes(1, 2).reshape(rows, columns)
            found.append((f"blk.{layer}.{theirs}.weight", tensor))
    return found
