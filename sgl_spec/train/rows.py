"""A Llama forward over independent rows with a slot cache: batched generation on a CPU, in numpy.

Each row is one token: (token id, cache slot, position). A decode step is one row per slot, a prefill one row
per prompt token, and a batch may mix both, so slots join and leave without padding. Weights stay fp32.
"""

import ctypes
import hashlib
import json
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from sgl_spec.errors import ConfigError
from sgl_spec.models import cache_root

_SOURCE = Path(__file__).parent / "csrc" / "rows.cpp"
# Linked in a second step without -ffast-math, which would flush denormals in the whole process.
_FLAGS = ["-O3", "-march=native", "-ffast-math", "-fno-finite-math-only", "-fPIC", "-std=c++17"]
_BLOCK = 16


class RowModel:
    """The weights of a Llama folder and a key/value cache of `slots` sequences of up to `capacity` tokens."""

    def __init__(self, folder: Path, slots: int, capacity: int) -> None:
        from safetensors.numpy import load_file

        config = json.loads((folder / "config.json").read_text())
        self.width = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.eps = config["rms_norm_eps"]
        self.capacity = -(-capacity // _BLOCK) * _BLOCK
        if self.width // self.heads != 64:
            raise ConfigError(
                f"target {folder.name} has head_dim {self.width // self.heads}; generation on a CPU knows 64."
            )
        w = {name: np.asarray(v, np.float32) for name, v in load_file(folder / "model.safetensors").items()}
        self.embed = w["model.embed_tokens.weight"]
        self.head = w.get("lm_head.weight", self.embed)
        self.norm = w["model.norm.weight"]
        self.layers = [_Layer(w, f"model.layers.{i}.") for i in range(config["num_hidden_layers"])]
        shape = (len(self.layers), slots * self.kv_heads * self.capacity * 64)
        self.keys, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        theta = (config.get("rope_parameters") or config)["rope_theta"]
        angle = np.arange(self.capacity)[:, None] * theta ** (-np.arange(32)[None] / 32.0)
        self.cos, self.sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        self.lib = _library()

    def forward(self, tokens: np.ndarray, slots: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Hidden states after the final norm, `[width, M]`, of M rows; their keys and values are stored.

        All three inputs are int32 `[M]`; a row sees the rows of its slot with smaller positions, stored
        before or given in the same call.
        """
        m, lib = len(tokens), self.lib
        rows = [ctypes.c_int64(n) for n in (self.heads, self.kv_heads, self.capacity, m)]
        x = np.ascontiguousarray(self.embed[tokens].T)
        for i, layer in enumerate(self.layers):
            k, v = _ptr(self.keys[i]), _ptr(self.values[i])
            qkv = layer.qkv @ self._normed(x, layer.norm_in)
            where = (_ptr(slots), _ptr(positions))
            lib.rotate_and_store(_ptr(qkv), _ptr(self.cos), _ptr(self.sin), *where, k, v, *rows)
            attended = np.empty((self.heads * 64, m), np.float32)
            lib.attention(_ptr(qkv), *where, k, v, _ptr(attended), *rows)
            x += layer.out @ attended
            gate_up = layer.gate_up @ self._normed(x, layer.norm_post)
            inner = np.empty((len(gate_up) // 2, m), np.float32)
            lib.silu_mul(_ptr(gate_up), _ptr(inner), ctypes.c_int64(len(inner)), ctypes.c_int64(m))
            x += layer.down @ inner
        return self._normed(x, self.norm)

    def top(self, hidden: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k most probable next tokens of each column: ids int32 and log-probabilities fp32, `[M, k]`."""
        m = hidden.shape[1]
        logits = self.head @ hidden
        ids, logp = np.empty((m, k), np.int32), np.empty((m, k), np.float32)
        sizes = [ctypes.c_int64(n) for n in (len(self.head), m, k)]
        self.lib.top_log_probs(_ptr(logits), *sizes, _ptr(ids), _ptr(logp))
        return ids, logp

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` to slot `target`."""
        span = -(-length // _BLOCK) * _BLOCK
        for cache_ in (self.keys, self.values):
            view = cache_.reshape(len(self.layers), -1, self.kv_heads, self.capacity * 64)
            view[:, target, :, : span * 64] = view[:, source, :, : span * 64]

    def _normed(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        y = np.empty_like(x)
        size = [ctypes.c_int64(n) for n in x.shape]
        self.lib.rms_norm(_ptr(x), _ptr(weight), _ptr(y), *size, ctypes.c_float(self.eps))
        return y


class _Layer:
    def __init__(self, w: dict[str, np.ndarray], prefix: str) -> None:
        def stack(*names: str) -> np.ndarray:
            return np.concatenate([w[f"{prefix}{name}.weight"] for name in names])

        self.qkv = stack("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.out = stack("self_attn.o_proj")
        self.gate_up = stack("mlp.gate_proj", "mlp.up_proj")
        self.down = stack("mlp.down_proj")
        self.norm_in = w[f"{prefix}input_layernorm.weight"]
        self.norm_post = w[f"{prefix}post_attention_layernorm.weight"]


def _ptr(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@cache
def _library() -> ctypes.CDLL:
    """Compile `csrc/rows.cpp` for this machine, once per source text, and load it."""
    compiler = os.environ.get("CXX", "g++")
    key = hashlib.sha256(_SOURCE.read_bytes() + " ".join([compiler, *_FLAGS]).encode()).hexdigest()[:16]
    built = cache_root() / "kernels" / f"rows-{key}.so"
    if not built.is_file():
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
            made = Path(scratch) / built.name
            try:
                for command in (
                    [compiler, *_FLAGS, "-c", str(_SOURCE), "-o", f"{made}.o"],
                    [compiler, "-shared", f"{made}.o", "-o", str(made), "-lmvec", "-lm"],
                ):
                    subprocess.run(command, check=True, capture_output=True, text=True)
            except FileNotFoundError as error:
                raise ConfigError(f"CXX={compiler} is not installed; install a C++ compiler.") from error
            except subprocess.CalledProcessError as error:
                said = error.stderr.strip().splitlines() or [f"status {error.returncode}"]
                raise ConfigError(
                    f"CXX={compiler} cannot compile {_SOURCE.name}: {said[0]}; install g++ 9 or newer."
                ) from error
            made.replace(built)
    return ctypes.CDLL(str(built))
