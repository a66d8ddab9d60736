"""`sgl-spec bench all`: the benchmarks that need the pair, one after the other on one engine."""

from sgl_spec.bench.adaptive import adaptive
from sgl_spec.bench.engine import engines_kept
from sgl_spec.bench.options import QuickFlag, SaveFlag
from sgl_spec.bench.prediction import prediction
from sgl_spec.bench.prefix import prefix
from sgl_spec.bench.speedup import speedup
from sgl_spec.bench.worst_case import worst_case


def every(quick: QuickFlag = False, save: SaveFlag = False) -> None:
    """Run speedup, adaptive, prediction, prefix and worst-case with their default sizes, starting the pair once.

    Example: sgl-spec bench all --save
    """
    with engines_kept():
        for bench in (speedup, adaptive, prediction, prefix, worst_case):
            bench(quick=quick, save=save)
