"""What a safetensors file says of itself: enough to refuse a torn or wrong one before an engine starts.

The format: 8 bytes with the header's length, the header (JSON: dtype, shape and place of each tensor), the data.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sgl_spec.errors import ConfigError

FLOATS = ("F64", "F32", "F16", "BF16")
LONGEST_HEADER = 100_000_000  # bytes, the format's own limit


class Tensor(NamedTuple):
    """A tensor's entry in the header."""

    dtype: str
    shape: tuple[int, ...]
    end: int  # of its bytes, counted from the end of the header


def tensors_of(file: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; raises ConfigError unless the file is whole."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(min(length, LONGEST_HEADER)))
        tensors = {
            name: Tensor(str(entry["dtype"]), tuple(map(int, entry["shape"])), int(entry["data_offsets"][1]))
            for name, entry in header.items()
            if name != "__metadata__"
        }
        size = file.stat().st_size
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): copy it again.") from None
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise ConfigError(f"{file} is no whole safetensors file: copy it again.") from None
    needed = 8 + length + max((tensor.end for tensor in tensors.values()), default=0)
    if size != needed:
        raise ConfigError(f"{file} holds {size} bytes where its header says {needed}: copy it again.")
    return tensors


def check_weight_files(knob: str, folder: Path, config: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first safetensors file of a model that is torn, or whose matrices are no floats.

    Integers are right where the config names a quantization. What is no plain file (a pipe) is left to the engine.
    """
    for file in sorted(folder.glob("*.safetensors")):
        if file.exists() and not file.is_file():
            continue
        for name, tensor in tensors_of(file).items():
            matrix = name.endswith("weight") and len(tensor.shape) > 1
            if matrix and tensor.dtype not in FLOATS and "quantization_config" not in config:
                raise ConfigError(
                    f"{knob}={folder}: {file.name} stores {name} as {tensor.dtype}, and config.json names no "
                    f"quantization_config: save the model as one of {', '.join(FLOATS)}, or complete config.json."
                )
