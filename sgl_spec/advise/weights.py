"""Bytes of a model's weights once loaded: from its safetensors files if it has any, else from its shape."""

from math import prod
from pathlib import Path
from typing import NamedTuple

from sgl_spec.advise.shape import ModelShape
from sgl_spec.errors import ConfigError
from sgl_spec.names import nearest
from sgl_spec.weight_files import tensors_of

DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}

# Bits per weight of the matrices; 4-bit formats carry a scale and a zero point per group of 128
# (awq, gptq: 16 + 4 bits) or a scale per block of 32 (mxfp4: 8 bits). Names are SGLang's.
QUANTISED_BITS = {
    "w8a8_int8": 8.0,
    "w8a8_fp8": 8.0,
    "fp8": 8.0,
    "awq": 4 + 20 / 128,
    "gptq": 4 + 20 / 128,
    "mxfp4": 4.25,
}

KV_BYTES = {"bfloat16": 2.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0}


class Parameters(NamedTuple):
    """Parameters by how they are stored: matrices of the layers, and all that quantisation leaves alone."""

    linear: int
    other: int

    def total_bytes(self, dtype: str, quantization: str | None, stored_bits: float | None = None) -> float:
        """Bytes in memory at `dtype`, with `quantization` (or the checkpoint's own bits) on the matrices."""
        plain = DTYPE_BYTES[check(dtype, DTYPE_BYTES, "dtype")]
        if quantization is not None:
            bits = QUANTISED_BITS[check(quantization, QUANTISED_BITS, "quantization")]
        else:
            bits = stored_bits or 8 * plain
        return self.linear * bits / 8 + self.other * plain


def check(value: str, known: dict[str, float], knob: str) -> str:
    """`value` if it is a key of `known`; else ConfigError with the nearest one."""
    if value not in known:
        raise ConfigError(f"{knob}={value!r} is not known here{nearest(value, known)}.")
    return value


def parameters_of(shape: ModelShape, folder: Path | None = None) -> Parameters:
    """Count in the safetensors files of `folder`; without such files, by the formulas of `shape`."""
    files = sorted(folder.glob("*.safetensors")) if folder else []
    if not files or shape.stored_bits is not None:  # packed integers say nothing about parameters
        return Parameters(shape.linear_parameters, shape.embedding_parameters + shape.norm_parameters)
    linear = other = 0
    for file in files:
        for name, tensor in tensors_of(file).items():
            if shape.tied and name.startswith("lm_head"):
                continue  # SGLang shares the embedding matrix
            count = prod(tensor.shape)
            if len(tensor.shape) < 2 or "embed" in name or name.startswith("lm_head"):
                other += count
            else:
                linear += count
    return Parameters(linear, other)
