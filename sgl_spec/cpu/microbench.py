"""What all the linears of a model cost per number of rows: `python -m sgl_spec.cpu.microbench`.

Every layer has its own weights, so a pass reads them cold from memory, as a decode step does. One thread.
Prints a card, then one JSON line: milliseconds per pass (the least of `repeats`), for PyTorch and the kernels.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from sgl_spec.cpu.linear import STORAGES, PackedLinear, set_threads

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


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--kinds", nargs="+", default=["torch", *STORAGES], choices=["torch", *STORAGES])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    set_threads(args.threads)
    shape = Shape()
    print("ms for all linears  " + "".join(f"{f'M={m}':>8}" for m in args.rows))
    results = {}
    for kind in args.kinds:
        results[kind] = measure(shape, kind, tuple(args.rows), args.repeats)
        print(f"{kind:<20}" + "".join(f"{ms:8.1f}" for ms in results[kind].values()), flush=True)
    print(json.dumps({"threads": args.threads, "ms": results}))


if __name__ == "__main__":
    main()
