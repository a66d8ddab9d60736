"""What the linears of a model (or its whole forward) cost by rows: `python -m sgl_spec.cpu.microbench`.

Every layer has its own weights, so a pass reads them cold from memory, as a decode step does. One thread.
Prints a card, then one JSON line: milliseconds per pass (least of `repeats`), PyTorch and the kernels.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from sgl_spec.cpu.linear import STORAGES, PackedLinear, Storage, set_threads
from sgl_spec.cpu.llama import LayerWeights, LlamaForward

ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 16, 64)


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama model's linears; the default is SmolLM2-135M."""

    hidden: int = 576
    inter: int = 1536
    layers: int = 30
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    vocab: int = 49152

    def linears(self) -> list[tuple[int, int]]:
        """[N, K] of every linear, in the order of a forward, the head last."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = [
            (q + 2 * kv, self.hidden),
            (self.hidden, q),
            (2 * self.inter, self.hidden),
            (self.hidden, self.inter),
        ]
        return layer * self.layers + [(self.vocab, self.hidden)]


def best_ms(call: Callable[[], object], repeats: int) -> float:
    """Least wall time of `repeats` calls, in ms; the first call is not counted."""
    call()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times) * 1e3


def measure(shape: Shape, kind: str, rows: tuple[int, ...], repeats: int) -> dict[int, float]:
    """Milliseconds per pass over all linears, by number of rows; `kind` is `torch` or a storage name."""
    sizes = shape.linears()
    weights = [torch.randn(n, k) * k**-0.5 for n, k in sizes]
    layers: list[Callable[[torch.Tensor], torch.Tensor]]
    if kind == "torch":
        layers = [lambda x, w=w: functional.linear(x, w) for w in weights]  # type: ignore[misc]
    else:
        layers = [PackedLinear(w, storage=kind) for w in weights]  # type: ignore[arg-type]
    del weights
    result = {}
    for m in rows:
        inputs = {k: torch.randn(m, k) for _, k in sizes}
        pairs = [(layer, inputs[k]) for layer, (_, k) in zip(layers, sizes, strict=True)]
        result[m] = best_ms(lambda pairs=pairs: [layer(x) for layer, x in pairs], repeats)  # type: ignore[misc]
    return result


def build_forward(shape: Shape, slots: int, storage: Storage) -> tuple[LlamaForward, PackedLinear]:
    """A random model of this shape over a KV pool of `slots`, and its head."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def packed(n: int, k: int) -> PackedLinear:
        return PackedLinear(torch.randn(n, k) * k**-0.5, storage=storage)

    layers = [
        LayerWeights(
            qkv=packed(q + 2 * kv, shape.hidden),
            o=packed(shape.hidden, q),
            gate_up=packed(2 * shape.inter, shape.hidden),
            down=packed(shape.hidden, shape.inter),
            input_norm=torch.ones(shape.hidden),
            post_norm=torch.ones(shape.hidden),
            keys=torch.randn(slots, shape.kv_heads, shape.head_dim),
            values=torch.randn(slots, shape.kv_heads, shape.head_dim),
        )
        for _ in range(shape.layers)
    ]
    angles = torch.arange(float(slots))[:, None] / 1e5 ** (torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    embedding = torch.randn(shape.vocab, shape.hidden)
    fused = LlamaForward(
        layers,
        embedding,
        torch.ones(shape.hidden),
        torch.cat([angles.cos(), angles.sin()], dim=1).contiguous(),
        shape.heads,
        shape.kv_heads,
        eps=1e-5,
        scale=shape.head_dim**-0.5,
    )
    return fused, PackedLinear(embedding, storage=storage)


def measure_forward(
    shape: Shape, storage: Storage, rows: tuple[int, ...], repeats: int, prefix: int
) -> dict[int, float]:
    """Milliseconds of a whole forward with head over M new tokens after `prefix`, by M.

    The numbers of rows take turns, so that a disturbance of the machine meets all of them.
    """
    slots = prefix + max(rows) + 1
    fused, head = build_forward(shape, slots, storage)
    table = torch.randperm(slots).to(torch.int32)[None, :].contiguous()
    calls: dict[int, Callable[[], object]] = {}
    for m in rows:
        positions = torch.arange(prefix, prefix + m)
        inputs = (
            positions % shape.vocab,
            positions,
            table[0, positions].long(),
            torch.zeros_like(positions),
            table,
        )
        calls[m] = lambda inputs=inputs: head(fused(*inputs))  # type: ignore[misc]
    result = dict.fromkeys(rows, float("inf"))
    for _ in range(repeats):
        for m, call in calls.items():
            result[m] = min(result[m], best_ms(call, 1))
    return result


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--kinds", nargs="+", default=["torch", *STORAGES], choices=["torch", *STORAGES])
    parser.add_argument("--forward", action="store_true", help="the whole forward instead of the linears alone")
    parser.add_argument("--prefix", type=int, default=256, help="tokens in the KV cache before a --forward")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    set_threads(args.threads)
    shape = Shape()
    what = f"ms, forward at KV {args.prefix}" if args.forward else "ms for all linears"
    print(f"{what:<24}" + "".join(f"{f'M={m}':>8}" for m in args.rows))
    results = {}
    for kind in args.kinds:
        if args.forward and kind == "torch":
            continue
        rows = tuple(args.rows)
        results[kind] = (
            measure_forward(shape, kind, rows, args.repeats, args.prefix)
            if args.forward
            else measure(shape, kind, rows, args.repeats)
        )
        print(f"{kind:<24}" + "".join(f"{ms:8.1f}" for ms in results[kind].values()), flush=True)
    print(json.dumps({"threads": args.threads, "prefix": args.prefix if args.forward else None, "ms": results}))


if __name__ == "__main__":
    main()
